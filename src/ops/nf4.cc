#include "octet/ops/nf4.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "checks.h"
#include "dispatch.h"
#include "nf4_rules.h"

namespace octet::ops {
namespace {

constexpr Nf4Table kTable;

/// Seven decades: decade d holds the midpoints of 2^d equal pieces of [0.1, 1], times 10^(d - 6). Both signs,
/// zero and one. Computed in fp32 like PyTorch: the bounds of pieces by a fused multiply-add from the nearer
/// end.
std::array<float, 256> dynamic_map() {
  std::array<float, 256> map{};
  std::size_t at = 0;
  for (int decade = 0; decade < 7; ++decade) {
    const int pieces = 1 << decade;
    const float step = (1.0f - 0.1f) / static_cast<float>(pieces);
    const auto bound = [&](int i) {
      return i < (pieces + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                  : std::fma(-step, static_cast<float>(pieces - i), 1.0f);
    };
    const auto power = static_cast<float>(std::pow(10.0, decade - 6));
    for (int i = 0; i < pieces; ++i) {
      const float middle = (bound(i) + bound(i + 1)) / 2.0f;
      map[at++] = power * middle;
      map[at++] = -power * middle;
    }
  }
  map[at++] = 0.0f;
  map[at++] = 1.0f;
  std::ranges::sort(map);
  return map;
}

bool has_scales(const Nf4Scales& s) {
  return s.plain != nullptr || (s.codes != nullptr && s.nested != nullptr && s.mean != nullptr);
}

bool is_series(const Nf4Series& s) {
  return s.tensors >= 1 && s.bytes % 16 == 0;
}

}  // namespace

const float* nf4_values() {
  return kTable.value;
}

const float* nf4_scale_values() {
  static const std::array<float, 256> map = dynamic_map();
  return map.data();
}

void nf4_quantize(Stream& stream, const Nf4QuantizeArgs& args) {
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "nf4_quantize: values are f32 or bf16");
  check(args.count >= 0, "nf4_quantize: a count of elements");
  if (args.count == 0) return;
  OCTET_DISPATCH(stream, nf4_quantize, args);
}

void nf4_quantize_scales(Stream& stream, const Nf4QuantizeScalesArgs& args) {
  check(args.blocks >= 1, "nf4_quantize_scales: the mean of at least one scale");
  OCTET_DISPATCH(stream, nf4_quantize_scales, args);
}

void nf4_decode(Stream& stream, const Nf4DecodeArgs& args) {
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "nf4_decode: values are f32 or bf16");
  check(args.begin >= 0 && args.begin % kNf4Block == 0, "nf4_decode: a part begins at a block");
  check(has_scales(args.scales) || stream.device().kind() == DeviceKind::dry,
        "nf4_decode: scales are plain or quantised");
  check(is_series(args.series), "nf4_decode: tensors of a series are at distances of 16 bytes");
  if (args.count == 0) return;
  OCTET_DISPATCH(stream, nf4_decode, args);
}

void nf4_to_fp8(Stream& stream, const Nf4ToFp8Args& args) {
  check(args.through == DType::f32 || args.through == DType::bf16, "nf4_to_fp8: values are f32 or bf16");
  check(is_fp8(args.format), "nf4_to_fp8: the format is FP8");
  check(args.transposed == nullptr || args.transposed_ld >= args.rows,
        "nf4_to_fp8: the rows of the transposed copy do not overlap");
  check((has_scales(args.scales) && args.scale != nullptr) || stream.device().kind() == DeviceKind::dry,
        "nf4_to_fp8: scales are plain or quantised, and the cast has one");
  check(is_series(args.series), "nf4_to_fp8: tensors of a series are at distances of 16 bytes");
  if (args.rows * args.cols == 0 || (args.row == nullptr && args.transposed == nullptr)) return;
  OCTET_DISPATCH(stream, nf4_to_fp8, args);
}

}  // namespace octet::ops
