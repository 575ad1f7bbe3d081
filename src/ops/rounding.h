// Stochastic rounding and the 8-bit formats of moments. CPU and CUDA compile the same code, so that both
// compute the same bits. Integer and fp32 arithmetic without branches. All operations are exact, except at
// the places that state a rounding.
#pragma once

#include <bit>
#include <cstdint>

#include "octet/base/random.h"

namespace octet::ops {

/// The rounded state of a parameter: each state has different noise.
enum class Rounded : std::uint32_t { master = 0, exp_avg = 1, exp_avg_sq = 2 };

/// Elements per call of the random generator, 16 bits each. Element i of a group takes the lower (i even) or
/// upper (i odd) half of word i / 2.
inline constexpr std::int64_t kNoiseGroup = 8;

/// Returns the random words for the noise of a group in one step.
[[gnu::always_inline]] constexpr std::array<std::uint32_t, 4> noise_source(std::uint64_t key,
                                                                           std::uint32_t tensor,
                                                                           std::int64_t group) {
  const auto index = static_cast<std::uint64_t>(group);
  return philox_rounds<7>(static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), tensor,
                          static_cast<std::uint32_t>(RandomUse::rounding), static_cast<std::uint32_t>(key),
                          static_cast<std::uint32_t>(key >> 32));
}

/// source -> source * factor + offset modulo 2^16. The map is invertible, so each state's noise is as uniform
/// as the source. Each state has a different map, so that a parameter's states are not rounded alike.
struct NoiseMap {
  std::uint32_t factor, offset;
};
[[gnu::always_inline]] constexpr NoiseMap noise_map(Rounded what) {
  if (what == Rounded::exp_avg) return {0x9E37u, 0x3C6Eu};
  if (what == Rounded::exp_avg_sq) return {0x6A6Du, 0x7F4Au};
  return {1, 0};
}
/// Returns 16 bits of noise for one state from the lower 16 bits of the source.
[[gnu::always_inline]] constexpr std::uint32_t noise_of(Rounded what, std::uint32_t source) {
  const NoiseMap map = noise_map(what);
  return (source * map.factor + map.offset) & 0xFFFFu;
}

/// Returns the noise of elements [kNoiseGroup * group, …) of a tensor in one step.
[[gnu::always_inline]] constexpr std::array<std::uint32_t, 4> rounding_noise(std::uint64_t key,
                                                                             std::uint32_t tensor,
                                                                             Rounded what,
                                                                             std::int64_t group) {
  std::array<std::uint32_t, 4> words = noise_source(key, tensor, group);
  for (std::uint32_t& word : words) word = noise_of(what, word) | noise_of(what, word >> 16) << 16;
  return words;
}

/// Returns the bf16 bits of x. The probability of rounding away from zero is the fraction that is cut off.
/// Infinities stay infinities; NaN stays a quiet NaN.
[[gnu::always_inline]] constexpr std::uint16_t bf16_stochastic(float x, std::uint32_t noise) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + noise) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

/// A format with three mantissa bits and at most one byte in total.
struct MomentFormat {
  std::uint32_t bias;
  std::uint32_t top;    ///< fp32 mantissa and exponent bits of the largest value
  std::uint32_t least;  ///< smallest code of a nonzero value
  std::uint32_t sign;   ///< the sign bit; 0: no sign
};
inline constexpr MomentFormat kFirstMoment{7, 0x43E00000u, 0, 0x80u};  // E4M3: 448
inline constexpr MomentFormat kSecondMoment{15, 0x47F00000u, 1, 0};    // 1.875 * 2^16

/// Returns the exponent of a block's scale (a power of two): the smallest exponent at which the block fits.
/// `amax`: bits of the block's largest magnitude. kNoScale: the whole block counts as zero.
inline constexpr std::int32_t kNoScale = -1000;
[[gnu::always_inline]] constexpr std::int32_t moment_exponent(const MomentFormat& f, std::uint32_t amax) {
  amax = amax < 0x7F7FFFFFu ? amax : 0x7F7FFFFFu;
  const auto exponent = static_cast<std::int32_t>(amax >> 23) - 127;
  const auto fits = static_cast<std::int32_t>(f.top >> 23) - 127;
  const std::int32_t more = (amax & 0x7FFFFFu) > (f.top & 0x7FFFFFu) ? 1 : 0;
  return exponent < -111 ? kNoScale : exponent - fits + more;
}
/// Returns 2^exponent, including subnormal values; 0 for kNoScale.
[[gnu::always_inline]] constexpr float moment_scale(std::int32_t exponent) {
  const std::uint32_t low = exponent < -149 ? 0u : 1u << (exponent < -126 ? exponent + 149 : 0);
  const std::uint32_t normal = static_cast<std::uint32_t>(exponent + 127) << 23;
  return std::bit_cast<float>(exponent < -126 ? (exponent < -149 ? 0u : low) : normal);
}
/// Returns the factor before encoding: 2^-exponent, or 0 for kNoScale.
[[gnu::always_inline]] constexpr float moment_unscale(std::int32_t exponent) {
  return exponent == kNoScale ? 0.0f : std::bit_cast<float>(static_cast<std::uint32_t>(127 - exponent) << 23);
}

/// Returns the code of y, rounded stochastically. Values beyond the format's range become its largest value.
[[gnu::always_inline]] constexpr std::uint8_t moment_code(const MomentFormat& f, float y,
                                                          std::uint32_t noise) {
  const auto bits = std::bit_cast<std::uint32_t>(y);
  const std::uint32_t whole = bits & 0x7FFFFFFFu;
  const std::uint32_t magnitude = whole < f.top ? whole : f.top;
  // Twenty bits are cut off; the noise fills their upper sixteen.
  const std::uint32_t normal = ((magnitude + (noise << 4) + 8u) >> 20) - ((127u - f.bias) << 3);
  // Below the smallest normal number, steps of 2^(-2 - bias) are counted, in units of 2^-16 of them.
  const float unit = std::bit_cast<float>((127u + 2u + f.bias + 16u) << 23);
  const float steps = std::bit_cast<float>(magnitude) * unit;
  const bool small = magnitude < ((128u - f.bias) << 23);
  const std::uint32_t subnormal =
      (static_cast<std::uint32_t>(static_cast<std::int32_t>(small ? steps : 0.0f)) + noise) >> 16;
  std::uint32_t code = small ? subnormal : normal;
  code = magnitude != 0 && code < f.least ? f.least : code;
  code = magnitude == 0 ? 0u : code;
  return static_cast<std::uint8_t>(code | ((bits >> 24) & f.sign));
}
/// Returns the value of a code before scaling. Exact.
[[gnu::always_inline]] constexpr float moment_value(const MomentFormat& f, std::uint8_t code) {
  const std::uint32_t magnitude = code & ~f.sign & 0xFFu;
  // The code's exponent and mantissa equal the ones of a tiny fp32 number, which is subnormal if the code is.
  const float value = std::bit_cast<float>(magnitude << 20) * std::bit_cast<float>((254u - f.bias) << 23);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | ((code & f.sign) << 24));
}

}  // namespace octet::ops
