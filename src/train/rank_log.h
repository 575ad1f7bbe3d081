// What each rank knows of itself and the log of all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/device/device.h"
#include "octet/train/engine.h"

namespace octet::train {

/// Bytes in use: of a GPU by all that run on it (what is in use now; a run's buffers are taken once, before
/// its first step); of a CPU by this process, at its highest so far.
std::int64_t memory_in_use(const Device& device);

/// Mean of the losses of steps, of the tokens that this rank trained in each.
class OwnLoss {
 public:
  /// Takes a step in; one without label tokens says nothing.
  void add(const RankLoss& step);
  /// Null when no step said anything.
  std::optional<double> mean() const;

 private:
  double sum_ = 0;
  std::int64_t steps_ = 0;
};

/// Of one rank.
struct OwnFacts {
  std::optional<double> loss;
  std::int64_t reserved_bytes = 0;
  std::int64_t used_bytes = 0;
};

/// Of all ranks.
struct AllFacts {
  std::vector<std::optional<double>> losses;  ///< by rank
  std::int64_t reserved_bytes = 0;            ///< of the rank that has most
  std::int64_t used_bytes = 0;                ///< likewise
};

/// All ranks call it; every one gets the facts of all.
AllFacts exchange_facts(comm::Channel& channel, const OwnFacts& own);

}  // namespace octet::train
