#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// A hash of 128 bits as two sums, each modulo 2^64. The hash of the whole is the sum of the hashes of its
/// parts, in any order. So threads, slices and pieces can be hashed independently.
struct Hash {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  bool operator==(const Hash&) const = default;
};

/// Adds to `to` the contribution of `bytes` of device memory to the hash of a larger range. The memory starts
/// at byte `at` of that range, a multiple of 8. Each 8-byte word (the last is padded with zeros) contributes
/// a function of its value and position, which is one-to-one for each position. So any change of one word
/// changes the hash. Changes of several words go unnoticed with a probability of at most 2^-64. The hash
/// gives no protection against deliberate manipulation. The CPU and the CUDA side give the same hash.
struct HashArgs {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  std::uint64_t at = 0;
  Hash* to = nullptr;  ///< device memory; zero it first
};
void add_hash(Stream& stream, const HashArgs& args);

}  // namespace octet::ops
