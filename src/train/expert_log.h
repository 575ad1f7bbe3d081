// The load of experts, of all ranks, and how a row of the log has it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/comm/channel.h"
#include "octet/model/transformer.h"

namespace octet::train {

/// Loads of all ranks added up. All ranks call it with loads of the same blocks.
model::ExpertLoads loads_of_all(comm::Channel& channel, const model::ExpertLoads& own);

/// The field "experts" of a row (docs/logging.md): by block the largest and the smallest share of rows, as
/// multiples of an even share, and the entropy of the shares, 1 for an even load.
Json expert_fields(const model::ExpertLoads& loads);

/// Finds experts without a row in many steps.
class IdleExperts {
 public:
  /// Steps without a row after which an expert is named.
  static constexpr std::int64_t kSteps = 100;

  /// `loads`: of the steps after the last call, up to `step`. Returns a warning that names the experts that
  /// had no row in kSteps steps and that were not named before; "" for none.
  std::string look(std::int64_t step, const model::ExpertLoads& loads);

 private:
  struct Expert {
    std::int64_t seen = 0;  ///< the last step up to which it had a row
    bool named = false;
  };
  std::map<std::int64_t, std::vector<Expert>> experts_;
  std::int64_t before_ = -1;  ///< the step of the last call, or that before the first
};

}  // namespace octet::train
