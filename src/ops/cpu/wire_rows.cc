#include "cpu/wire_rows.h"

#include <bit>

#include "octet/base/dtype.h"
#include "octet/base/fp8_vector.h"
#include "one_nan.h"

namespace octet::ops::cpu::rows {
namespace {

constexpr std::int32_t kMagnitude = 0x7FFFFFFF;
constexpr std::int32_t kInfinity = 0x7F800000;

// Rounds to nearest even by adding 1.5 * 2^23. |y| is at most slightly above 127.
OCTET_INLINE std::int32_t int8_code(float y) {
  constexpr float shift = 0x1.8p23f;
  const auto rounded = std::bit_cast<std::int32_t>(y + shift) - std::bit_cast<std::int32_t>(shift);
  return rounded < -127 ? -127 : rounded > 127 ? 127 : rounded;
}

}  // namespace

// Divides instead of multiplying by the inverse: the inverse of a subnormal factor is infinite.
OCTET_SIMD void encode_e4m3(const float* x, float scale, std::int64_t n, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = encode_fp8<E4M3>(x[i] / scale);
}

OCTET_SIMD void encode_int8(const float* x, float scale, std::int64_t n, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(int8_code(x[i] / scale));
}

OCTET_SIMD void decode_e4m3(const std::uint8_t* codes, float scale, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = std::bit_cast<float>(decode_fp8<E4M3>(codes[i])) * scale;
}

OCTET_SIMD void decode_int8(const std::uint8_t* codes, float scale, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale;
  }
}

OCTET_SIMD void to_bf16(const float* x, std::int64_t n, std::uint16_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = to_settled_bf16(x[i]);
}

OCTET_SIMD void from_bf16(const std::uint16_t* x, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = octet::from_bf16(x[i]);
}

OCTET_SIMD void settle(const float* x, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = settled(x[i]);
}

OCTET_SIMD float largest(const float* x, std::int64_t n) {
  std::int32_t amax = 0;  // magnitudes are ordered like their bits
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

}  // namespace octet::ops::cpu::rows
