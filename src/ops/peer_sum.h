// How words of values travel in sums between peers: each beside a mark that says of which sum it is, written
// and read as one, so that nobody waits for anything but the words themselves (the LL protocol of NCCL).
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define OCTET_PEER_SUM_INLINE __host__ __device__ inline
#else
#define OCTET_PEER_SUM_INLINE inline
#endif

namespace octet::ops {

/// The mark of the n-th sum, from 0: never 0, which is what places hold at first. It comes again after 2^32 -
/// 1 sums, by when a place has long been written by others, unless no sum of its size was made in all of
/// them.
OCTET_PEER_SUM_INLINE std::uint32_t mark_of(std::uint64_t n) {
  return static_cast<std::uint32_t>(n % 0xFFFFFFFFu) + 1;
}

/// Where the words of a member lie, in the places of any rank, for the n-th sum. A member writes to a set
/// again two sums later: it has seen a word of every other one's sum in between by then, which that one began
/// when it had read all of this one.
OCTET_PEER_SUM_INLINE std::size_t place_of(std::uint64_t n, int ranks, int member, std::size_t room) {
  const auto set = static_cast<std::size_t>(n % 2);
  return (set * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(member)) * 2 * room;
}

}  // namespace octet::ops
