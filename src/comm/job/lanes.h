// Agreement on a lane for a group. Every rank of the job states its group, and the lane is opened on all
// ranks only if they agree.
#pragma once

#include <string>
#include <vector>

#include "messages/messages.h"
#include "messages/steps.h"

namespace octet::comm {

/// The request of a rank.
struct LaneRequest {
  std::string group;        ///< the name of its group, the same on all ranks
  std::vector<int> ranks;   ///< of its group
  std::vector<int> queues;  ///< purposes of its lanes
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& group& ranks& queues;
  }
};

/// Returns the conflict between the requests (by rank) as text, equal on all ranks. Empty: no conflict.
std::string disagreement(const std::vector<LaneRequest>& requests);

/// Gathers all ranks' requests over the call's lane. Then opens the lanes of this rank and stores their
/// numbers in *ids, or stores the reason for failure in *trouble. Both must outlive the coroutine.
Steps open_lanes_steps(Call& call, LaneRequest mine, std::vector<int>* ids, std::string* trouble);

}  // namespace octet::comm
