// Shared parts of the tests of collectives. Every rank can compute the inputs of all ranks, and the expected
// sums are computed sequentially in rank order.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "octet/comm/thread_ranks.h"
#include "octet/device/device.h"

namespace octet::comm {

/// The device with streams that access Values; null: the CPU. One for the whole program.
inline Device*& device_of_values() {
  static Device* device = nullptr;
  return device;
}

/// Memory that the host accesses, and the GPU if tests use one.
template <typename T>
struct ReachableAllocator {
  using value_type = T;
  ReachableAllocator() = default;
  template <typename U>
  ReachableAllocator(const ReachableAllocator<U>&) {}
  T* allocate(std::size_t n) {
    if (device_of_values() == nullptr) return std::allocator<T>().allocate(n);
    return static_cast<T*>(device_of_values()->allocate_host(n * sizeof(T)));
  }
  void deallocate(T* at, std::size_t n) {
    if (device_of_values() == nullptr) return std::allocator<T>().deallocate(at, n);
    device_of_values()->release_host(at, n * sizeof(T));
  }
  bool operator==(const ReachableAllocator&) const { return true; }
};
template <typename T>
using Values = std::vector<T, ReachableAllocator<T>>;

/// Returns one element of a rank's input, computed by SplitMix64. Magnitudes span ten powers of two, so that
/// another summation order gives other bits.
inline float element_of(int rank, std::int64_t index, std::uint64_t seed) {
  std::uint64_t x =
      (seed << 48) + (static_cast<std::uint64_t>(rank) << 40) + static_cast<std::uint64_t>(index);
  x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  x ^= x >> 31;
  const float unit = static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-31f;
  return unit * static_cast<float>(1 << ((x >> 40) % 10));
}

inline Values<float> input_of(int rank, std::int64_t count, std::uint64_t seed) {
  Values<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = element_of(rank, i, seed);
  return values;
}

/// Returns ((r0 + r1) + r2) + … for slice `owner`, with `count` elements per slice.
inline Values<float> sum_in_rank_order(int size, int owner, std::int64_t count, std::uint64_t seed) {
  Values<float> sum(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = owner * count + i;
    float& one = sum[static_cast<std::size_t>(i)];
    one = element_of(0, index, seed);
    for (int r = 1; r < size; ++r) one += element_of(r, index, seed);
  }
  return sum;
}

/// Whether all bits are equal, including NaNs. Empty vectors are equal.
template <typename T>
bool same_bits(const Values<T>& a, const Values<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Returns slice sizes that reach every path: none, fewer than a block, odd, several chunks. The reduce
/// queue's chunk is 2^19 elements over all ranks, and five chunks are more than are in flight.
inline std::vector<std::int64_t> slice_sizes(int ranks) {
  return {0, 1, 3, 127, 1000, 4097, 2 * (1 << 20) / ranks + 129};
}

}  // namespace octet::comm
