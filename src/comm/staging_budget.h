// How the memory of a device's communicator is laid out, alike on all ranks: counters first, then the staging
// of the two queues.
#pragma once

#include <cstddef>

#include "composed.h"
#include "peer_exchange.h"

namespace octet::comm {

struct StagingBudget {
  std::size_t counters = 0;  ///< bytes of the counters of one queue
  std::size_t gather_part = 0, reduce_part = 0;
  int size = 0;

  std::size_t bytes() const {
    return 2 * counters + DeviceStaging::bytes(size, gather_part) + DeviceStaging::bytes(size, reduce_part);
  }
  DeviceStaging gather(std::byte* memory) const {
    return {.memory = memory + 2 * counters, .part = gather_part, .size = size};
  }
  DeviceStaging reduce(std::byte* memory) const {
    return {.memory = memory + 2 * counters + DeviceStaging::bytes(size, gather_part),
            .part = reduce_part,
            .size = size};
  }
};

/// Among that many ranks.
StagingBudget staging_budget(int size);

}  // namespace octet::comm
