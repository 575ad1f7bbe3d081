// Transfer of values in sums between peers. Each word is stored next to the mark of its sum, and both are
// written and read as one unit. Ranks therefore wait only for the words (the LL protocol of NCCL).
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define OCTET_PEER_SUM_INLINE __host__ __device__ inline
#else
#define OCTET_PEER_SUM_INLINE inline
#endif

namespace octet::ops {

/// Returns the mark of the n-th sum, from 0. It is never 0, the initial value of places. A mark repeats after
/// 2^32 - 1 sums. By then other sums have overwritten a place, unless none of them was as large as its sum.
OCTET_PEER_SUM_INLINE std::uint32_t mark_of(std::uint64_t n) {
  return static_cast<std::uint32_t>(n % 0xFFFFFFFFu) + 1;
}

/// Returns the offset of a member's words in the places of any rank, for the n-th sum. A member reuses a set
/// two sums later. By then it has received a word of the next sum from every other member. A member begins
/// the next sum only after it has read all words of this sum.
OCTET_PEER_SUM_INLINE std::size_t place_of(std::uint64_t n, int ranks, int member, std::size_t room) {
  const auto set = static_cast<std::size_t>(n % 2);
  return (set * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(member)) * 2 * room;
}

}  // namespace octet::ops
