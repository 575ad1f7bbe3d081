// What one word adds to a hash (octet/ops/hash.h), on every processor.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define OCTET_HASH_WORD __host__ __device__ inline
#else
#define OCTET_HASH_WORD inline __attribute__((always_inline))
#endif

namespace octet::ops {

/// The finaliser of SplitMix64 (Steele et al. 2014) of the word and its place: one to one for each place.
OCTET_HASH_WORD std::uint64_t hash_word(std::uint64_t word, std::uint64_t place) {
  std::uint64_t z = word + (place + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// The second sum takes the same number with a weight of its place, so that what cancels in one sum does not
/// in the other.
OCTET_HASH_WORD std::uint64_t hash_weighted(std::uint64_t mixed, std::uint64_t place) {
  return (mixed ^ (mixed >> 32)) * (place * 0xD1342543DE82EF95ull | 1);
}

}  // namespace octet::ops

#undef OCTET_HASH_WORD
