#include "wire_rows.h"

#include <bit>

#include "octet/base/simd.h"

namespace octet::comm::rows {
namespace {

constexpr std::int32_t kMagnitude = 0x7FFFFFFF;
constexpr std::int32_t kInfinity = 0x7F800000;

OCTET_INLINE float as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
OCTET_INLINE std::uint32_t as_bits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

// The same codes as to_fp8(y, DType::e4m3), for finite y.
OCTET_INLINE std::uint32_t e4m3_code(float y) {
  const std::uint32_t bits = as_bits(y);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  float magnitude = as_float(bits & 0x7FFFFFFFu);
  magnitude = magnitude < 448.0f ? magnitude : 448.0f;
  const std::uint32_t m = as_bits(magnitude);
  // Round to three bits of mantissa and move the exponent's bias from 127 to 7 ...
  const std::uint32_t normal = ((m + 0x7FFFFu + ((m >> 20) & 1u)) >> 20) - (120u << 3);
  // ... or, below 2^-6, count steps of 2^-9: the unit in the last place of 2^14.
  const std::uint32_t subnormal = as_bits(magnitude + 0x1p14f) - as_bits(0x1p14f);
  return sign | (magnitude < 0x1p-6f ? subnormal : normal);
}

// The same value as from_fp8(code, DType::e4m3). Chosen by masks: a floating-point operation that a branch
// may leave out keeps compilers from making vectors.
OCTET_INLINE float e4m3_value(std::uint32_t code) {
  const std::uint32_t magnitude = code & 0x7Fu;
  const std::uint32_t normal = (magnitude << 20) + (120u << 23);
  const std::uint32_t subnormal = as_bits(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9f);
  const std::uint32_t is_small = 0u - static_cast<std::uint32_t>(magnitude < 8);
  const std::uint32_t is_nan = 0u - static_cast<std::uint32_t>(magnitude == 0x7Fu);
  return as_float((subnormal & is_small) | (normal & ~is_small) | (0x7FC00000u & is_nan) |
                  (code & 0x80u) << 24);
}

// Round to nearest even by the unit in the last place of 1.5 * 2^23; |y| is at most 127 and a little.
OCTET_INLINE std::int32_t int8_code(float y) {
  constexpr float shift = 0x1.8p23f;
  const auto rounded = std::bit_cast<std::int32_t>(y + shift) - std::bit_cast<std::int32_t>(shift);
  return rounded < -127 ? -127 : rounded > 127 ? 127 : rounded;
}

}  // namespace

// Divisions, not products with the inverse: the inverse of a subnormal factor is infinite.
OCTET_SIMD void encode_e4m3(const float* x, float scale, std::int64_t n, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(e4m3_code(x[i] / scale));
}

OCTET_SIMD void encode_int8(const float* x, float scale, std::int64_t n, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(int8_code(x[i] / scale));
}

OCTET_SIMD void decode_e4m3(const std::uint8_t* codes, float scale, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = e4m3_value(codes[i]) * scale;
}

OCTET_SIMD void decode_int8(const std::uint8_t* codes, float scale, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale;
  }
}

OCTET_SIMD void to_bf16(const float* x, std::int64_t n, std::uint16_t* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = as_bits(x[i]);
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40u;
    to[i] = static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
  }
}

OCTET_SIMD void from_bf16(const std::uint16_t* x, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = as_float(static_cast<std::uint32_t>(x[i]) << 16);
}

OCTET_SIMD float largest(const float* x, std::int64_t n) {
  std::int32_t amax = 0;  // magnitudes order like their bits
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(x[i]) & kMagnitude;
    amax = magnitude > amax ? magnitude : amax;
  }
  return std::bit_cast<float>(amax);
}

OCTET_SIMD void add(const float* a, const float* b, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
}

OCTET_SIMD void lost(const float* x, const float* y, std::int64_t n, float* lost) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float difference = x[i] - y[i];
    const bool finite = (std::bit_cast<std::int32_t>(difference) & kMagnitude) < kInfinity;
    lost[i] = finite ? difference : 0.0f;
  }
}

}  // namespace octet::comm::rows
