// The contribution of one word to a hash (octet/ops/step_checks.h), equal on every processor.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define OCTET_HASH_WORD __host__ __device__ inline
#else
#define OCTET_HASH_WORD inline __attribute__((always_inline))
#endif

namespace octet::ops {

/// The finaliser of SplitMix64 (Steele et al. 2014), applied to the word and its place. Bijective in the word
/// for each place.
OCTET_HASH_WORD std::uint64_t hash_word(std::uint64_t word, std::uint64_t place) {
  std::uint64_t z = word + (place + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// Contribution to the second sum: the same number, weighted by the place. Changes that cancel in one sum do
/// not cancel in the other.
OCTET_HASH_WORD std::uint64_t hash_weighted(std::uint64_t mixed, std::uint64_t place) {
  return (mixed ^ (mixed >> 32)) * (place * 0xD1342543DE82EF95ull | 1);
}

}  // namespace octet::ops

#undef OCTET_HASH_WORD
