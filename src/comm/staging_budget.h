// How the memory of a device's communicator is laid out, alike on all ranks: counters first, then the staging
// of the two queues, then the places of
// their eager messages.
#pragma once

#include <cstddef>

#include "composed.h"
#include "peer_exchange.h"

namespace octet::comm {

struct StagingBudget {
  std::size_t counters = 0;  ///< bytes of a queue's
  std::size_t gather_part = 0, reduce_part = 0;
  std::size_t eager_room = 0;  ///< of a member's eager message, in each queue
  int size = 0;

  std::size_t all_counters() const { return 2 * counters; }
  std::size_t counters_at(int queue) const { return static_cast<std::size_t>(queue) * counters; }
  std::size_t bytes() const { return eager_at(2); }
  /// Where the eager messages of a queue arrive; behind everything else.
  std::size_t eager_at(int queue) const {
    return all_counters() + DeviceStaging::bytes(size, gather_part) +
           DeviceStaging::bytes(size, reduce_part) +
           static_cast<std::size_t>(queue) * eager_bytes(size, eager_room);
  }
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
