// Sums of a few values over the ranks of one host, each by one kernel on a stream of any kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "octet/device/device.h"

namespace octet::ops {

/// The most ranks of a peer_sum, and the number of blocks of its kernel: that every sum of a group has as
/// many is what its messages are counted by.
inline constexpr int kMostPeers = 16;
inline constexpr int kPeerSumBlocks = 32;

/// Bytes of a rank's places for sums of up to `room` bytes of values, a multiple of 8: two sets, used by
/// turns, of a place for each rank, in which every word of values has a word beside it that says of which sum
/// it is.
constexpr std::size_t peer_places_bytes(int ranks, std::size_t room) {
  return 2 * static_cast<std::size_t>(ranks) * 2 * room;
}

/// to[i] = addend[i] + the sum of values[i] over the ranks. The sum is made in fp32 in the order of the ranks
/// and rounded to `dtype`, and what the addend makes of it is rounded once more, so that all ranks get the
/// same bits, which are those of sum_parts, twice.
///
/// All ranks of a group enqueue the same sums in the same order, each on one stream that never changes, and
/// every sum waits for those of the others: each rank has a device of its own, or, of ranks that share one,
/// streams that run side by side. Nothing here depends on anything that the host counts, so that a sum may be
/// recorded and replayed (recording.h).
struct PeerSumArgs {
  const void* values = nullptr;  ///< [count] f32 or bf16, on 16 bytes; may be `to`
  const void* addend = nullptr;  ///< [count] likewise, apart from `to`; null: none
  void* to = nullptr;            ///< [count]
  DType dtype = DType::f32;
  std::int64_t count = 0;  ///< of 8 bytes in all, or a multiple of that
  int rank = 0;
  /// Of each rank, as this one reaches them: peer_places_bytes(ranks, room), zero before the first sum. The
  /// list lives until the sum is made.
  std::span<std::byte* const> places;
  std::size_t room = 0;  ///< at least the bytes of the values
  /// Device memory of this rank, zero before the first sum: counts what the kernels of sums have begun.
  std::uint64_t* begun = nullptr;
  /// On a CPU: called now and then by a stream that waits; what it throws, the stream throws.
  std::function<void()> alive = nullptr;
};

/// Whether so many values are of a form that peer_sum takes.
bool peer_sum_takes(std::int64_t count, DType dtype, std::size_t room);

void peer_sum(Stream& stream, const PeerSumArgs& args);

}  // namespace octet::ops
