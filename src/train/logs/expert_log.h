// The load of experts over all ranks, and its fields in a log row.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/comm/channel.h"
#include "octet/model/transformer.h"

namespace octet::train {

/// Returns the summed loads of all ranks. Collective. All ranks pass loads of the same blocks.
model::ExpertLoads loads_of_all(comm::Channel& channel, const model::ExpertLoads& own);

/// Returns the field "experts" of a log row (docs/logging.md). Per block: the largest and smallest share of
/// rows, relative to an even share, and the entropy of the shares, 1 for an even load; and the share of rows
/// that were dropped.
Json expert_fields(const model::ExpertLoads& loads);

/// Finds experts that get no row in many steps.
class IdleExperts {
 public:
  /// Steps without a row until an expert is reported.
  static constexpr std::int64_t kSteps = 100;

  /// `loads`: loads of the steps after the last call, up to `step`. Returns a warning with the experts that
  /// had no row in kSteps steps and were not reported before, or "".
  std::string look(std::int64_t step, const model::ExpertLoads& loads);

 private:
  struct Expert {
    std::int64_t seen = 0;  ///< the last step with a row, or the last step known to have one
    bool named = false;
  };
  std::map<std::int64_t, std::vector<Expert>> experts_;
  std::int64_t before_ = -1;  ///< the step of the last call, or the step before the first call
};

}  // namespace octet::train
