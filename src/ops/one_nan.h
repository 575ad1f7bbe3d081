// What is no number, one text for both sides so that both have the same bits: sums and products that are NaN
// have other signs and fractions on every kind of processor. Where results are settled, all are the quiet
// NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "octet/base/dtype.h"

namespace octet::ops {

inline constexpr std::uint32_t kNanBits = 0x7FC00000u;
inline constexpr std::uint16_t kBf16NanBits = 0x7FC0u;
inline constexpr std::uint64_t kDoubleNanBits = 0x7FF8000000000000u;

/// x, or the one NaN.
[[gnu::always_inline]] constexpr float settled(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits & 0x7FFFFFFFu) > 0x7F800000u ? kNanBits : bits);
}
[[gnu::always_inline]] constexpr double settled(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const bool nan = (bits & 0x7FFFFFFFFFFFFFFFu) > 0x7FF0000000000000u;
  return std::bit_cast<double>(nan ? kDoubleNanBits : bits);
}
[[gnu::always_inline]] constexpr std::int64_t settled(std::int64_t x) {
  return x;
}
/// float -> bfloat16 to nearest even, or its one NaN.
[[gnu::always_inline]] constexpr std::uint16_t to_settled_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? kBf16NanBits : static_cast<std::uint16_t>(rounded);
}

}  // namespace octet::ops
