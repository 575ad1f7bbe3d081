#include "held_values.h"

#include <algorithm>
#include <utility>

#include "octet/ops/elementwise.h"
#include "octet/ops/nf4.h"

namespace octet::runtime {
namespace {

constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // elements, whole blocks of NF4

}  // namespace

HeldValues::HeldValues(const HeldAs& how, Read read, std::int64_t count)
    : how_(how),
      read_(std::move(read)),
      device_(make_cpu_device()),
      stream_(device_->make_stream({.name = "held values"})) {
  if (how_.nf4) quantise(count);
}

void HeldValues::round_to_compute(float* values, std::int64_t count) {
  if (how_.compute != DType::bf16) return;
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(count));
  ops::convert(*stream_, values, DType::f32, narrow.data(), DType::bf16, count);
  ops::convert(*stream_, narrow.data(), DType::bf16, values, DType::f32, count);
  stream_->synchronize();
}

void HeldValues::quantise(std::int64_t count) {
  codes_.resize(static_cast<std::size_t>(ops::nf4_code_bytes(count)));
  scales_.resize(static_cast<std::size_t>(ops::nf4_blocks(count)));
  std::vector<float> values(static_cast<std::size_t>(std::min(count, kPiece)));
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const std::int64_t size = std::min(kPiece, count - begin);
    read_(begin, size, values.data());
    round_to_compute(values.data(), size);
    ops::nf4_quantize(*stream_, {.x = values.data(),
                                 .dtype = DType::f32,
                                 .count = size,
                                 .codes = codes_.data() + begin / 2,
                                 .scales = scales_.data() + begin / ops::kNf4Block});
    stream_->synchronize();
  }
  if (!how_.double_quantization) return;
  scale_codes_.resize(scales_.size());
  nested_.resize(static_cast<std::size_t>(ops::nf4_scale_blocks(count)));
  ops::nf4_quantize_scales(*stream_, {.scales = scales_.data(),
                                      .blocks = std::ssize(scales_),
                                      .codes = scale_codes_.data(),
                                      .nested = nested_.data(),
                                      .mean = &mean_});
  stream_->synchronize();
}

void HeldValues::get(std::int64_t begin, std::int64_t count, float* out) {
  if (!how_.nf4) {
    read_(begin, count, out);
    return round_to_compute(out, count);
  }
  ops::Nf4Scales scales{.plain = scales_.data()};
  if (how_.double_quantization)
    scales = {.codes = scale_codes_.data(), .nested = nested_.data(), .mean = &mean_};
  const std::int64_t first = begin / ops::kNf4Block * ops::kNf4Block;
  decoded_.resize(static_cast<std::size_t>(begin + count - first));
  ops::nf4_decode(*stream_, {.codes = codes_.data(),
                             .scales = scales,
                             .begin = first,
                             .count = std::ssize(decoded_),
                             .to = decoded_.data(),
                             .dtype = DType::f32});
  stream_->synchronize();
  std::copy_n(decoded_.begin() + (begin - first), count, out);
  round_to_compute(out, count);
}

}  // namespace octet::runtime
