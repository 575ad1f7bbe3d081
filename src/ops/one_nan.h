// Canonical NaN. CPU and CUDA compile the same code, so that both compute the same bits. The sign and
// fraction of a computed NaN depend on the processor. Settled results use the quiet NaN only.
#pragma once

#include <bit>
#include <cstdint>

#include "octet/base/dtype.h"

namespace octet::ops {

inline constexpr std::uint32_t kNanBits = 0x7FC00000u;
inline constexpr std::uint16_t kBf16NanBits = 0x7FC0u;
inline constexpr std::uint64_t kDoubleNanBits = 0x7FF8000000000000u;

/// Returns x, or the canonical NaN if x is NaN.
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
/// Converts float to bfloat16, rounded to nearest even. NaN becomes the canonical NaN.
[[gnu::always_inline]] constexpr std::uint16_t to_settled_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? kBf16NanBits : static_cast<std::uint16_t>(rounded);
}

}  // namespace octet::ops
