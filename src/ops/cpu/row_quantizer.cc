#include "cpu/row_quantizer.h"

#include <algorithm>
#include <cstring>

#include "block_scale.h"

namespace octet::ops::cpu {
namespace {

OCTET_SIMD std::uint32_t largest(const float* y, std::int64_t n) {
  return max_bits(y, n);
}
OCTET_SIMD void count(const float* y, float scale, std::int64_t n, DType format, CastCounts& counts) {
  count_casts(y, scale, n, format, counts);
}
OCTET_SIMD void encode_e4m3(const float* y, float scale, std::uint8_t* to, std::int64_t n) {
  encode_chunk<E4M3>(y, scale, to, n);
}
OCTET_SIMD void encode_e5m2(const float* y, float scale, std::uint8_t* to, std::int64_t n) {
  encode_chunk<E5M2>(y, scale, to, n);
}

}  // namespace

void RowQuantizer::take_chunk(RowQuantizer& self, const float* y, std::int64_t row, std::int64_t col,
                              std::int64_t n) {
  const QuantizeInto& into = self.into_;
  if (into.amax || into.seen || into.row_scale_inv) self.most_ = std::max(self.most_, largest(y, n));
  if (into.seen) count(y, self.scale_, n, into.format, self.counts_);
  if (into.row_scale_inv) {
    std::memcpy(self.values_.data() + col, y, static_cast<std::size_t>(n) * sizeof(float));
    self.row_ = row;
    return;
  }
  if (!into.row && !into.transposed) return;
  std::uint8_t codes[kChunk];
  std::uint8_t* const to = into.row ? into.row + row * self.cols_ + col : codes;
  (into.format == DType::e4m3 ? encode_e4m3 : encode_e5m2)(y, self.scale_, to, n);
  if (!into.transposed) return;
  for (std::int64_t i = 0; i < n; ++i) into.transposed[(col + i) * self.rows_ + row] = to[i];
}

void RowQuantizer::finish(RowQuantizer& self) {
  const QuantizeInto& into = self.into_;
  if (into.row_scale_inv) {
    const std::int32_t e = block_exponent(self.most_);
    into.row_scale_inv[self.row_] = power_of_two(e);
    encode_e4m3(self.values_.data(), power_of_two(-e), into.row + self.row_ * self.cols_, self.cols_);
  }
  if (into.amax && self.most_ > 0) raise_amax(into.amax, self.most_);
  if (into.seen) {
    if (self.most_ > 0) raise_amax(&into.seen->amax, self.most_);
    lower_scale(into.seen->scale, self.scale_);
    add_seen(*into.seen, self.cols_, self.counts_);
    self.counts_ = {};
  }
  self.most_ = 0;
}

}  // namespace octet::ops::cpu
