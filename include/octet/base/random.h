// Random numbers from counters: a value depends on (seed, stream, index) alone, never on hidden state, so
// any rank can be at any step by arithmetic. Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers:
// as easy as 1, 2, 3").
#pragma once

#include <array>
#include <cstdint>

namespace octet {

/// The use of a random number; separates the streams of one seed.
enum class RandomUse : std::uint32_t {
  init = 1,
  shuffle = 2,
  rounding = 3,
  dropout = 4,
  data = 5,
  sampling = 6,
  noise = 7
};

/// The rounds of Philox4x32 on a counter. Ten are its authors' default. Seven are the fewest that pass all of
/// their tests, for callers that need very many numbers.
template <int kRounds>
[[gnu::always_inline]] constexpr std::array<std::uint32_t, 4> philox_rounds(
    std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3, std::uint32_t k0,
    std::uint32_t k1) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// Four independent 32-bit numbers of counter (`index`, `sub`) under key (`seed`, use).
constexpr std::array<std::uint32_t, 4> philox(std::uint64_t seed, RandomUse use, std::uint64_t index,
                                              std::uint32_t sub = 0) {
  return philox_rounds<10>(
      static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), sub,
      static_cast<std::uint32_t>(use), static_cast<std::uint32_t>(seed),
      static_cast<std::uint32_t>(seed >> 32) ^ (static_cast<std::uint32_t>(use) * 0x9E3779B1u));
}

/// Uniform in [0, 1) with 24 bits.
constexpr float uniform(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// Uniform in [0, n) by multiplication (Lemire 2019); n > 0. The bias is below n / 2^64.
constexpr std::uint64_t below(std::uint64_t n, std::uint32_t high, std::uint32_t low) {
  const std::uint64_t x = (static_cast<std::uint64_t>(high) << 32) | low;
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(x) * n) >> 64);
}

/// A standard normal number (Box and Muller 1958) for element `index` of stream `sub`.
float normal(std::uint64_t seed, RandomUse use, std::uint64_t index, std::uint32_t sub = 0);

/// Position of element `i` in a keyed permutation of [0, n): a Feistel network with cycle walking, so that
/// a shuffle needs no memory and any position is found by arithmetic.
std::uint64_t permute(std::uint64_t i, std::uint64_t n, std::uint64_t seed, std::uint32_t round_key);

}  // namespace octet
