// How the memory of a device's communicator is laid out, alike on all ranks: counters first, then the staging
// of the two queues, then the places of their eager messages, then those of direct sums.
#pragma once

#include <cstddef>

#include "composed.h"
#include "octet/ops/peer_sum.h"
#include "peer_exchange.h"

namespace octet::comm {

struct StagingBudget {
  std::size_t counters = 0;  ///< bytes of a queue's
  std::size_t gather_part = 0, reduce_part = 0;
  std::size_t eager_room = 0;  ///< of a member's eager message, in each queue
  std::size_t sum_room = 0;    ///< of a member's values in a direct sum; 0: there are none
  int size = 0;

  std::size_t all_counters() const { return 2 * counters; }
  std::size_t counters_at(int queue) const { return static_cast<std::size_t>(queue) * counters; }
  std::size_t bytes() const { return sums_at() + ops::peer_places_bytes(size, sum_room); }
  /// Where the eager messages of a queue arrive.
  std::size_t eager_at(int queue) const {
    return all_counters() + DeviceStaging::bytes(size, gather_part) +
           DeviceStaging::bytes(size, reduce_part) +
           static_cast<std::size_t>(queue) * eager_bytes(size, eager_room);
  }
  /// Where the values of direct sums arrive.
  std::size_t sums_at() const { return eager_at(2); }
  /// What counts them: the last word of the counters, which those of the queues leave free.
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

/// Among that many ranks. On CPUs, where ranks are threads and tests, a hundredth of what GPUs have: then
/// sums of little data take many chunks too.
StagingBudget staging_budget(int size, DeviceKind kind);

}  // namespace octet::comm
