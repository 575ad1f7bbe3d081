// Facts of each rank, and their exchange for the log.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/device/device.h"
#include "octet/train/engine.h"

namespace octet::train {

/// Returns the bytes in use. On a GPU: current use by all its processes; a run allocates its buffers once,
/// before its first step. On a CPU: peak use of this process.
std::int64_t memory_in_use(const Device& device);

/// Mean loss over steps, from the tokens that this rank trained in each.
class OwnLoss {
 public:
  /// Adds a step. Steps without label tokens are skipped.
  void add(const RankLoss& step);
  /// Null if no step had label tokens.
  std::optional<double> mean() const;

 private:
  double sum_ = 0;
  std::int64_t steps_ = 0;
};

/// Facts of one rank.
struct OwnFacts {
  std::optional<double> loss;
  std::int64_t reserved_bytes = 0;
  std::int64_t used_bytes = 0;
};

/// Facts of all ranks.
struct AllFacts {
  std::vector<std::optional<double>> losses;  ///< by rank
  std::int64_t reserved_bytes = 0;            ///< maximum over ranks
  std::int64_t used_bytes = 0;                ///< likewise
};

/// Collective. Returns the facts of all ranks on each rank.
AllFacts exchange_facts(comm::Channel& channel, const OwnFacts& own);

}  // namespace octet::train
