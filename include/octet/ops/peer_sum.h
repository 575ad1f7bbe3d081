// Sums of a few values over the ranks of one host. Each sum is one kernel on a stream of any kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "octet/device/device.h"

namespace octet::ops {

/// The maximum number of ranks of a peer_sum, and the number of blocks of its kernel. All sums of a group
/// have the same number of blocks, because messages are counted by it.
inline constexpr int kMostPeers = 16;
inline constexpr int kPeerSumBlocks = 32;

/// Returns the bytes of the receive slots of a rank for sums of up to `room` bytes of values, a multiple of
/// 8. Two sets of slots alternate, with one slot per rank. In a slot, each word of values is followed by a
/// word with the number of its sum.
constexpr std::size_t peer_places_bytes(int ranks, std::size_t room) {
  return 2 * static_cast<std::size_t>(ranks) * 2 * room;
}

/// to[i] = addend[i] + the sum of values[i] over the ranks. The sum is computed in fp32 in rank order and
/// rounded to `dtype`. The sum with the addend is rounded again. So all ranks get the same bits, which are
/// also the bits of two calls of sum_parts.
///
/// All ranks of a group enqueue the same sums in the same order, each on one fixed stream. Each sum waits for
/// the other ranks. So each rank needs its own device, or the ranks that share a device need streams that run
/// concurrently. Nothing depends on a counter of the host, so a sum can be recorded and replayed
/// (device.h).
struct PeerSumArgs {
  const void* values = nullptr;  ///< [count] f32 or bf16, aligned to 16 bytes; may be `to`
  const void* addend = nullptr;  ///< [count] like `values`, must not overlap `to`; null: none
  void* to = nullptr;            ///< [count]
  DType dtype = DType::f32;
  std::int64_t count = 0;  ///< the values take a multiple of 8 bytes
  int rank = 0;
  /// The slots of each rank, as addresses of this rank: peer_places_bytes(ranks, room), zero before the first
  /// sum. The list must live until the sum has ended.
  std::span<std::byte* const> places;
  std::size_t room = 0;  ///< at least the bytes of the values
  /// Device memory of this rank, zero before the first sum. Counts the blocks that kernels of sums have
  /// begun.
  std::uint64_t* begun = nullptr;
  /// On a CPU, a waiting stream calls this periodically. The stream rethrows its exceptions.
  std::function<void()> alive = nullptr;
};

/// True if peer_sum accepts this number of values.
bool peer_sum_takes(std::int64_t count, DType dtype, std::size_t room);

void peer_sum(Stream& stream, const PeerSumArgs& args);

}  // namespace octet::ops
