// The scale of a block. CPU and CUDA compile the same code, so that both compute the same bits.
#pragma once

#include <bit>
#include <cstdint>

namespace octet::ops {

/// Returns e such that 2^e is the scale of a block. `amax`: fp32 bits of the block's largest magnitude.
[[gnu::always_inline]] constexpr std::int32_t block_exponent(std::uint32_t amax) {
  if (amax == 0 || amax >= 0x7F800000u) return 0;
  // E4M3 represents at most 448 = 1.75 * 2^8.
  const std::int32_t e = static_cast<std::int32_t>(amax >> 23) - 127 - 8;
  const std::int32_t fits = e + ((amax & 0x7FFFFFu) > 0x600000u ? 1 : 0);
  return fits < -100 ? -100 : fits;
}
/// 2^e; |e| is at most 126.
[[gnu::always_inline]] constexpr float power_of_two(std::int32_t e) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(127 + e) << 23);
}

}  // namespace octet::ops
