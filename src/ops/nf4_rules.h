// The values of NF4 and the rule of encoding. CPU and CUDA compile the same code, so that both compute the
// same bits. Also declares both sides of the NF4 ops, for dispatch.h.
#pragma once

#include <cstdint>

#include "octet/ops/nf4.h"

namespace octet::ops {

/// Quantiles of a normal distribution, as bitsandbytes writes them in fp32 (arXiv:2305.14314, appendix E).
struct Nf4Table {
  float value[16] = {-1.0f,
                     -0.6961928009986877f,
                     -0.5250730514526367f,
                     -0.39491748809814453f,
                     -0.28444138169288635f,
                     -0.18477343022823334f,
                     -0.09105003625154495f,
                     0.0f,
                     0.07958029955625534f,
                     0.16093020141124725f,
                     0.24611230194568634f,
                     0.33791524171829224f,
                     0.44070982933044434f,
                     0.5626170039176941f,
                     0.7229568362236023f,
                     1.0f};
};

/// Returns the midpoint of two neighbours, which is encoded as the lower one.
[[gnu::always_inline]] constexpr float between(float low, float high) {
  return (low + high) * 0.5f;
}

/// Returns the code of x by binary search: four comparisons. NaN (0 times the reciprocal of 0) gets the
/// lowest code.
[[gnu::always_inline]] constexpr std::uint32_t nf4_code(const Nf4Table& table, float x) {
  std::uint32_t code = 0;
  for (std::uint32_t step = 8; step > 0; step /= 2) {
    if (x > between(table.value[code + step - 1], table.value[code + step])) code += step;
  }
  return code;
}

/// Like nf4_code, for a scale among the 256 values of `map`.
[[gnu::always_inline]] constexpr std::uint32_t nf4_scale_code(const float* map, float x) {
  std::uint32_t code = 0;
  for (std::uint32_t step = 128; step > 0; step /= 2) {
    if (x > between(map[code + step - 1], map[code + step])) code += step;
  }
  return code;
}

/// Returns the value of a scale's code. The product and the sum are rounded separately.
[[gnu::always_inline]] constexpr float nf4_scale(float value, float nested, float mean) {
  const float scaled = value * nested;
  return scaled + mean;
}

template <typename T>
constexpr T* moved(T* address, std::int64_t elements) {
  return address == nullptr ? nullptr : address + elements;
}
/// Returns the scales that begin `bytes` later.
constexpr Nf4Scales nth_of_series(const Nf4Scales& s, std::int64_t bytes) {
  const std::int64_t floats = bytes / static_cast<std::int64_t>(sizeof(float));
  return {moved(s.plain, floats), moved(s.codes, bytes), moved(s.nested, floats), moved(s.mean, floats)};
}
/// Returns the arguments of the tensor `i` of a series.
constexpr Nf4DecodeArgs nth_of_series(Nf4DecodeArgs a, std::int64_t i) {
  a.codes += i * a.series.bytes;
  a.scales = nth_of_series(a.scales, i * a.series.bytes);
  const auto element = static_cast<std::int64_t>(size_of(a.dtype));
  a.to = moved(static_cast<std::uint8_t*>(a.to), i * a.series.elements * element);
  return a;
}
constexpr Nf4ToFp8Args nth_of_series(Nf4ToFp8Args a, std::int64_t i) {
  a.codes += i * a.series.bytes;
  a.scales = nth_of_series(a.scales, i * a.series.bytes);
  a.scale = moved(a.scale, i * a.series.scale);
  a.row = moved(a.row, i * a.series.elements);
  a.transposed = moved(a.transposed, i * a.series.transposed);
  return a;
}

namespace cpu {
void nf4_quantize(const Nf4QuantizeArgs& args);
void nf4_quantize_scales(const Nf4QuantizeScalesArgs& args);
void nf4_decode(const Nf4DecodeArgs& args);
void nf4_to_fp8(const Nf4ToFp8Args& args);
}  // namespace cpu

namespace cuda {
void nf4_quantize(Stream& stream, const Nf4QuantizeArgs& args);
void nf4_quantize_scales(Stream& stream, const Nf4QuantizeScalesArgs& args);
void nf4_decode(Stream& stream, const Nf4DecodeArgs& args);
void nf4_to_fp8(Stream& stream, const Nf4ToFp8Args& args);
}  // namespace cuda

}  // namespace octet::ops
