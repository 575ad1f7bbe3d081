// Conversions between FP8 and fp32 for loops over elements. They have no branches, so compilers vectorise
// them, and no subnormal intermediate floats, which cost a hundred cycles on some processors. The bits equal
// to_fp8 and from_fp8.
#pragma once

#include <bit>
#include <cstdint>

// Attributes for loops over elements: one compiles a function for several x86-64 levels, of which the best
// that the processor has is chosen when the program starts; the other makes a helper part of each.

// A product and a sum are never contracted, so the bits are the same at every level. Level 2 has no FMA and
// would only repeat the default. Sanitizers cannot run the resolvers.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(OCTET_SANITIZED) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OCTET_SIMD __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define OCTET_SIMD
#endif
#define OCTET_INLINE inline __attribute__((always_inline))

namespace octet {

/// The geometry of an FP8 format (Micikevicius et al. 2022, "FP8 formats for deep learning").
struct E4M3 {
  static constexpr int mantissa = 3, bias = 7;
  static constexpr std::uint32_t max_magnitude = 0x43E00000u;  ///< bits of 448 as fp32
};
struct E5M2 {
  static constexpr int mantissa = 2, bias = 15;
  static constexpr std::uint32_t max_magnitude = 0x47600000u;  ///< bits of 57344 as fp32
};

/// The code of any float: saturating, to nearest even, NaN to the format's NaN.
template <typename F>
OCTET_INLINE std::uint8_t encode_fp8(float x) {
  constexpr int drop = 23 - F::mantissa;
  constexpr std::uint32_t smallest_normal = static_cast<std::uint32_t>(128 - F::bias) << 23;
  // Adding 2^23 steps of the subnormal range rounds to a whole number of steps.
  constexpr std::uint32_t step = static_cast<std::uint32_t>(128 - F::bias - F::mantissa + 23) << 23;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t clamped = magnitude < F::max_magnitude ? magnitude : F::max_magnitude;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(clamped) + std::bit_cast<float>(step)) - step;
  const std::uint32_t normal = ((clamped + ((1u << (drop - 1)) - 1u) + ((clamped >> drop) & 1u)) >> drop) -
                               (static_cast<std::uint32_t>(127 - F::bias) << F::mantissa);
  const std::uint32_t code = (clamped < smallest_normal ? subnormal : normal) | ((bits >> 24) & 0x80u);
  return static_cast<std::uint8_t>(magnitude > 0x7F800000u ? 0x7Fu : code);
}

/// The value of a code, as bits of fp32. The upper half is the value in bf16.
template <typename F>
OCTET_INLINE std::uint32_t decode_fp8(std::uint8_t x) {
  const std::uint32_t magnitude = x & 0x7Fu;
  const std::uint32_t placed = magnitude << (23 - F::mantissa);
  // A subnormal m counts m * 2^(1 - bias - mantissa): the fraction of 2^(1 - bias) * (1 + m / 2^mantissa).
  constexpr std::uint32_t one = static_cast<std::uint32_t>(127 + 1 - F::bias) << 23;
  const float small = std::bit_cast<float>(one | placed) - std::bit_cast<float>(one);
  const std::uint32_t normal = placed + (static_cast<std::uint32_t>(127 - F::bias) << 23);
  std::uint32_t bits = magnitude < (1u << F::mantissa) ? std::bit_cast<std::uint32_t>(small) : normal;
  if constexpr (F::mantissa == 3) {  // E4M3: one NaN, no infinity
    bits = magnitude == 0x7Fu ? 0x7FC00000u : bits;
  } else {  // E5M2: the top exponent is infinity and NaN
    bits = magnitude >= 0x7Cu ? (0x7F800000u | placed) : bits;
  }
  return bits | (static_cast<std::uint32_t>(x & 0x80u) << 24);
}

}  // namespace octet
