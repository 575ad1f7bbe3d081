// What the tests of collectives share: inputs that every rank can compute for every other, and the sums that
// must come out, computed sequentially in rank order.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "octet/comm/communicator.h"
#include "octet/device/device.h"

namespace octet::comm {

/// One element of a rank's input, by arithmetic (SplitMix64): magnitudes over ten powers of two, so that
/// another order of summation gives other bits.
inline float element_of(int rank, std::int64_t index, std::uint64_t seed) {
  std::uint64_t x =
      (seed << 48) + (static_cast<std::uint64_t>(rank) << 40) + static_cast<std::uint64_t>(index);
  x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  x ^= x >> 31;
  const float unit = static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-31f;
  return unit * static_cast<float>(1 << ((x >> 40) % 10));
}

inline std::vector<float> input_of(int rank, std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = element_of(rank, i, seed);
  return values;
}

/// ((r0 + r1) + r2) + … of slice `owner`, each of `count` elements.
inline std::vector<float> sum_in_rank_order(int size, int owner, std::int64_t count, std::uint64_t seed) {
  std::vector<float> sum(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = owner * count + i;
    float& one = sum[static_cast<std::size_t>(i)];
    one = element_of(0, index, seed);
    for (int r = 1; r < size; ++r) one += element_of(r, index, seed);
  }
  return sum;
}

/// Same bits, NaN included; empty vectors are equal.
template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Elements of one slice that reach every path: none, fewer than a block, odd, several chunks (the reduce
/// queue's chunk is 2^19 elements over all ranks, and five are more than travel at a time).
inline std::vector<std::int64_t> slice_sizes(int ranks) {
  return {0, 1, 3, 127, 1000, 4097, 2 * (1 << 20) / ranks + 129};
}

}  // namespace octet::comm
