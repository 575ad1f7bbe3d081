#include "octet/base/dtype.h"

#include <array>
#include <cmath>

namespace octet {
namespace {

// The geometry of an FP8 format: `mantissa` bits, exponent bias, code of the largest finite value.
struct Fp8Format {
  int mantissa;
  int bias;
  std::uint8_t max_code;
  std::uint8_t nan_code;
};
constexpr Fp8Format kE4M3{3, 7, 0x7E, 0x7F};
constexpr Fp8Format kE5M2{2, 15, 0x7B, 0x7F};

constexpr Fp8Format format_of(DType t) {
  return t == DType::e4m3 ? kE4M3 : kE5M2;
}

float decode_fp8(std::uint8_t code, DType type) {
  const Fp8Format f = format_of(type);
  const int magnitude = code & 0x7F;
  const float sign = (code & 0x80) ? -1.0f : 1.0f;
  if (magnitude > f.max_code) {
    if (type == DType::e5m2 && magnitude == 0x7C) return sign * INFINITY;
    return std::bit_cast<float>(sign < 0 ? 0xFFC00000u : 0x7FC00000u);
  }
  const int exponent = magnitude >> f.mantissa;
  const int fraction = magnitude & ((1 << f.mantissa) - 1);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - f.bias - f.mantissa);
  return sign * std::ldexp(static_cast<float>((1 << f.mantissa) + fraction), exponent - f.bias - f.mantissa);
}

std::array<std::array<float, 256>, 2> make_tables() {
  std::array<std::array<float, 256>, 2> tables{};
  for (int code = 0; code < 256; ++code) {
    tables[0][static_cast<std::size_t>(code)] = decode_fp8(static_cast<std::uint8_t>(code), DType::e4m3);
    tables[1][static_cast<std::size_t>(code)] = decode_fp8(static_cast<std::uint8_t>(code), DType::e5m2);
  }
  return tables;
}

}  // namespace

std::string_view name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::e4m3:
      return "fp8_e4m3";
    case DType::e5m2:
      return "fp8_e5m2";
    case DType::f64:
      return "fp64";
    case DType::i64:
      return "int64";
    case DType::i32:
      return "int32";
    case DType::i16:
      return "int16";
    case DType::i8:
      return "int8";
    case DType::u8:
      return "uint8";
    case DType::boolean:
      return "bool";
  }
  return "?";
}

float from_f16(std::uint16_t x) {
  const int exponent = (x >> 10) & 0x1F;
  const int fraction = x & 0x3FF;
  const float sign = (x & 0x8000) ? -1.0f : 1.0f;
  if (exponent == 31) {
    if (fraction == 0) return sign * INFINITY;
    return std::bit_cast<float>(((x & 0x8000u) << 16) | 0x7FC00000u |
                                (static_cast<std::uint32_t>(fraction) << 13));
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

std::uint16_t to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 places the 10-bit fraction in the low bits, rounded to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
}

std::uint8_t to_fp8(float x, DType type) {
  const Fp8Format f = format_of(type);
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  // cuda_fp8.h drops the sign of a NaN: 0x7F.
  if (magnitude > 0x7F800000u) return f.nan_code;
  const float absolute = std::bit_cast<float>(magnitude);
  if (absolute >= fp8_max(type)) return static_cast<std::uint8_t>(sign | f.max_code);
  const int smallest_normal_exponent = 1 - f.bias;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  std::uint32_t code = 0;
  if (exponent < smallest_normal_exponent) {
    // Subnormal: a whole number of steps of 2^(1 - bias - mantissa). Adding 2^23 steps rounds to nearest
    // even.
    const float step = std::bit_cast<float>(
        static_cast<std::uint32_t>(127 + smallest_normal_exponent - f.mantissa + 23) << 23);
    code = std::bit_cast<std::uint32_t>(absolute + step) - std::bit_cast<std::uint32_t>(step);
  } else {
    const int drop = 23 - f.mantissa;
    const std::uint32_t odd = (magnitude >> drop) & 1u;
    const std::uint32_t rounded = (magnitude + ((1u << (drop - 1)) - 1u) + odd) >> drop;
    code = rounded - (static_cast<std::uint32_t>(127 - f.bias) << f.mantissa);
  }
  if (code > f.max_code) code = f.max_code;
  return static_cast<std::uint8_t>(sign | code);
}

float from_fp8(std::uint8_t x, DType type) {
  static const auto tables = make_tables();
  return tables[type == DType::e4m3 ? 0 : 1][x];
}

}  // namespace octet
