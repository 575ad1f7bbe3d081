// How ranks come to have a lane for a group: all ranks of the job say which group each of them means, and
// only when all agree is it opened, on all of them at once.
#pragma once

#include <string>
#include <vector>

#include "messages.h"
#include "steps.h"

namespace octet::comm {

/// What a rank asks for.
struct LaneRequest {
  std::string group;        ///< the name of its group, the same on all ranks
  std::vector<int> ranks;   ///< of its group
  std::vector<int> queues;  ///< what its lanes are for
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& group& ranks& queues;
  }
};

/// What is wrong with what the ranks ask for, by rank: in words, the same on all of them. Empty: nothing.
std::string disagreement(const std::vector<LaneRequest>& requests);

/// Gathers all ranks' requests over the call's lane, and opens the lanes of this rank's, with their numbers
/// in *ids; or says in *trouble why not. Both outlive the coroutine.
Steps open_lanes_steps(Call& call, LaneRequest mine, std::vector<int>* ids, std::string* trouble);

}  // namespace octet::comm
