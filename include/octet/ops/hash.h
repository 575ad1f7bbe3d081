#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// A hash of 128 bits as two sums, each modulo 2^64. Hashes of parts add up to that of the whole, in any
/// order, so that threads, slices and pieces need not follow each other.
struct Hash {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  bool operator==(const Hash&) const = default;
};

/// Adds to `to` what `bytes` of device memory contribute to a hash in which they lie at byte `at`, a multiple
/// of 8: of each word of eight bytes (the last one filled up with zeros) a function of the word and of its
/// place that no two words share, so that any change of one word changes the hash for certain, and changes of
/// several go unseen in one case of 2^64 or less. No protection against somebody who means to deceive. The
/// CPU and the CUDA side give the same.
struct HashArgs {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  std::uint64_t at = 0;
  Hash* to = nullptr;  ///< device memory; zero it first
};
void add_hash(Stream& stream, const HashArgs& args);

}  // namespace octet::ops
