// Staging memory of the collectives of a queue, and the memory layout of a device's communicator, which is
// equal on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/peer_exchange.h"
#include "octet/comm/collectives.h"
#include "octet/ops/peer_sum.h"

namespace octet::comm {

/// Staging memory of the chunks under way in a queue. Two sets, each with receive and send parts of equal
/// size for every member. Equal layout on all members.
struct DeviceStaging {
  static constexpr int sets = 2;
  std::byte* memory = nullptr;
  std::size_t part = 0;  ///< bytes
  int size = 0;

  /// Returns the part size for `size` members, given the bytes of one set in one direction.
  static std::size_t part_of(int size, std::size_t budget);
  static std::size_t bytes(int size, std::size_t part) {
    return 2 * sets * static_cast<std::size_t>(size) * part;
  }
  /// Returns the number of elements of a chunk that fit into a part when encoded.
  std::int64_t chunk_of(Wire wire) const;
  std::byte* set(std::int64_t chunk) const {
    return memory + static_cast<std::size_t>(chunk % sets) * set_bytes();
  }
  std::size_t set_bytes() const { return 2 * static_cast<std::size_t>(size) * part; }
  std::byte* arriving(std::int64_t chunk, int member) const {
    return set(chunk) + static_cast<std::size_t>(member) * part;
  }
  std::byte* leaving(std::int64_t chunk, int member) const {
    return set(chunk) + static_cast<std::size_t>(size + member) * part;
  }
};

// Memory layout of a device's communicator, equal on all ranks: counters, staging of the two queues, places
// of their eager messages, places of direct sums.

struct StagingBudget {
  std::size_t counters = 0;  ///< bytes per queue
  std::size_t gather_part = 0, reduce_part = 0;
  std::size_t eager_room = 0;  ///< bytes of a member's eager message, in each queue
  std::size_t sum_room = 0;    ///< bytes of a member's values in a direct sum; 0: no direct sums
  int size = 0;

  /// Returns how many times larger the buffers of a GPU are than the buffers of `kind`. Small messages of CPU
  /// ranks then take several chunks too.
  static std::size_t share_of(DeviceKind kind);
  std::size_t all_counters() const { return 2 * counters; }
  std::size_t counters_at(int queue) const { return static_cast<std::size_t>(queue) * counters; }
  std::size_t bytes() const { return sums_at() + ops::peer_places_bytes(size, sum_room); }
  /// Offset of the receive buffers of a queue's eager messages.
  std::size_t eager_at(int queue) const {
    return all_counters() + DeviceStaging::bytes(size, gather_part) +
           DeviceStaging::bytes(size, reduce_part) +
           static_cast<std::size_t>(queue) * eager_bytes(size, eager_room);
  }
  /// Offset of the receive buffers of direct sums.
  std::size_t sums_at() const { return eager_at(2); }
  /// Offset of the counter of direct sums: the last word of the counters, which the queues do not use.
  std::size_t sums_begun_at() const { return all_counters() - sizeof(std::uint64_t); }
  DeviceStaging gather(std::byte* memory) const {
    return {.memory = memory + all_counters(), .part = gather_part, .size = size};
  }
  DeviceStaging reduce(std::byte* memory) const {
    return {.memory = memory + all_counters() + DeviceStaging::bytes(size, gather_part),
            .part = reduce_part,
            .size = size};
  }
};

/// Returns the budget for `size` ranks. CPU ranks (threads and tests) get a hundredth of a GPU's budget, so
/// that sums of little data also take many chunks.
StagingBudget staging_budget(int size, DeviceKind kind);

}  // namespace octet::comm
