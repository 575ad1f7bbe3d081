// Element types and their exact conversions. Everything here is plain C++ without dependencies, so that
// CUDA translation units include it too.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octet {

/// The element types that travel through Octet. Storage sizes: see size_of.
enum class DType : std::uint8_t { f32, bf16, f16, e4m3, e5m2, f64, i64, i32, i16, i8, u8, boolean };

/// Bytes of one element.
constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
      return 2;
    default:
      return 1;
  }
}

/// Name as the command line and checkpoints spell it: "fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", …
std::string_view name_of(DType t);

/// True for e4m3 and e5m2.
constexpr bool is_fp8(DType t) {
  return t == DType::e4m3 || t == DType::e5m2;
}

/// Largest finite magnitude of an FP8 format: 448 (E4M3FN) or 57344 (E5M2). (Micikevicius et al. 2022,
/// "FP8 formats for deep learning".)
constexpr float fp8_max(DType t) {
  return t == DType::e4m3 ? 448.0f : 57344.0f;
}

/// float -> bfloat16, round to nearest even; NaN stays NaN (quiet), infinities stay. Without a branch and
/// part of its caller, so that loops over it become vectors.
[[gnu::always_inline]] constexpr std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

/// bfloat16 -> float, exact.
[[gnu::always_inline]] constexpr float from_bf16(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

/// IEEE half -> float, exact.
float from_f16(std::uint16_t x);
/// float -> IEEE half, round to nearest even, overflow to infinity.
std::uint16_t to_f16(float x);

/// float -> FP8 with saturation to the largest finite value (infinities too), round to nearest even,
/// subnormals kept, NaN to the format's NaN: bit-equal to cuda_fp8.h's __NV_SATFINITE conversions.
std::uint8_t to_fp8(float x, DType format);
/// FP8 -> float, exact. E4M3 has no infinities (0x7F and 0xFF are NaN), E5M2 has.
float from_fp8(std::uint8_t x, DType format);

/// Storage type of a bfloat16 number in kernels.
struct Bf16 {
  std::uint16_t bits;
  constexpr Bf16() = default;
  constexpr explicit Bf16(float x) : bits(to_bf16(x)) {}
  constexpr explicit operator float() const { return from_bf16(bits); }
};
static_assert(sizeof(Bf16) == 2);

}  // namespace octet
