#include "octet/ops/decode_gemm.h"

#include <algorithm>
#include <cstring>

#include "checks.h"
#include "dispatch.h"
#include "octet/base/environment.h"

namespace octet::ops {

// Contract checks of GEMMs of very few tokens.

/// Throws std::logic_error if shapes or dtypes do not match.
void check_decode_gemm(const DecodeGemmArgs& args);

namespace cpu {
void decode_gemm(const DecodeGemmArgs& args);
}  // namespace cpu
namespace cuda {
bool has_decode_gemm(const Device& device, const DecodeGemmArgs& args);
void decode_gemm(Stream& stream, const DecodeGemmArgs& args);
}  // namespace cuda

namespace {

bool asked_of_cpu() {
  const char* wish = environment_variable("OCTETRUN_LONE_GEMM");
  return wish != nullptr && std::strcmp(wish, "always") == 0;
}

bool refused() {
  const char* wish = environment_variable("OCTETRUN_LONE_GEMM");
  return wish != nullptr && std::strcmp(wish, "never") == 0;
}

}  // namespace

void check_decode_gemm(const DecodeGemmArgs& a) {
  using End = DecodeGemmArgs::End;
  const Operand& w = a.weight;
  check(w.data != nullptr && w.rows > 0 && w.cols > 0 &&
            (w.dtype == DType::bf16 ||
             (w.dtype == DType::e4m3 && w.scaling == Scaling::whole_rows && w.scale_inv != nullptr)),
        "decode_gemm: the weight is [out, in] bf16, or E4M3 with scales of whole rows");
  check(is_matrix(a.x) && a.x.dtype == DType::bf16 && a.x.cols == w.cols,
        "decode_gemm: x is [tokens, in] bf16");
  const std::int64_t columns = a.end == End::gated ? w.rows / 2 : w.rows;
  check(is_matrix(a.y) && a.y.dtype == DType::bf16 && a.y.rows == a.x.rows && a.y.cols == columns,
        "decode_gemm: y is [tokens, out] bf16, of a gated one [tokens, out / 2]");
  check(a.end != End::gated || w.rows % 2 == 0, "decode_gemm: gate and up have as many rows");
  check(a.end != End::rotated || (w.rows == a.heads.qkv_width() && a.positions != nullptr &&
                                  a.cosine != nullptr && a.sine != nullptr),
        "decode_gemm: rotation needs queries, keys, values, tables and positions");
  check(a.addend.data == nullptr || (a.end == End::plain && is_matrix(a.addend) && same_form(a.addend, a.y)),
        "decode_gemm: only a plain GEMM takes an addend, which has the shape and dtype of the output");
}

bool has_decode_gemm(const Device& device, const DecodeGemmArgs& args) {
  if (args.x.rows < 1 || args.x.rows > kDecodeTokens || args.x.dtype != DType::bf16) return false;
  if (args.end == DecodeGemmArgs::End::gated && args.activation == Activation::clamped) return false;
  const Operand& w = args.weight;
  if (w.dtype != DType::bf16 && (w.dtype != DType::e4m3 || w.scaling != Scaling::whole_rows)) return false;
  if (device.kind() == DeviceKind::cpu) return asked_of_cpu();
  return device.kind() == DeviceKind::cuda && !refused() && cuda::has_decode_gemm(device, args);
}

void decode_gemm(Stream& stream, const DecodeGemmArgs& args) {
  if (args.x.rows == 0) return;
  check_decode_gemm(args);
  OCTET_DISPATCH(stream, decode_gemm, args);
}

namespace cuda {
bool has_decode_chain(const Device& device, std::span<const DecodeGemmArgs> gemms);
void decode_chain(Stream& stream, std::span<const DecodeGemmArgs> gemms);
}  // namespace cuda

namespace {

bool refuses_chains() {
  const char* wish = environment_variable("OCTETRUN_LONE_CHAIN");
  return wish != nullptr && std::strcmp(wish, "never") == 0;
}

bool follow_each_other(std::span<const DecodeGemmArgs> gemms) {
  for (std::size_t g = 1; g < gemms.size(); ++g) {
    const Matrix& made = gemms[g - 1].y;
    const ConstMatrix& x = gemms[g].x;
    if (x.data != made.data || x.rows != made.rows || x.cols != made.cols || x.ld != made.ld) return false;
  }
  return true;
}

}  // namespace

bool has_decode_chain(const Device& device, std::span<const DecodeGemmArgs> gemms) {
  if (gemms.size() < 2 || gemms.size() > kDecodeChain || refuses_chains()) return false;
  const auto taken = [&](const DecodeGemmArgs& a) { return has_decode_gemm(device, a); };
  if (!std::ranges::all_of(gemms, taken) || !follow_each_other(gemms)) return false;
  return device.kind() != DeviceKind::cuda || cuda::has_decode_chain(device, gemms);
}

void decode_chain(Stream& stream, std::span<const DecodeGemmArgs> gemms) {
  check(gemms.size() <= kDecodeChain && follow_each_other(gemms),
        "decode_chain: up to four GEMMs, each with the output of the previous GEMM as its input");
  if (stream.device().kind() == DeviceKind::cuda) {
    for (const DecodeGemmArgs& a : gemms) check_decode_gemm(a);
    return cuda::decode_chain(stream, gemms);
  }
  for (const DecodeGemmArgs& a : gemms) decode_gemm(stream, a);
}

}  // namespace octet::ops
