// After which steps a run evaluates and saves.
#pragma once

#include <cstdint>

#include "octet/setup/run_options.h"

namespace octet::train {

/// How often the configuration repeats an action.
struct Turn {
  setup::When when = setup::When::never;
  double interval = 1;  ///< in steps, or a share of all steps below 1; for When::steps
};

/// Whether the action is due after `step`, a complete step of `total`. `ends_epoch`: the step ends an epoch.
bool is_turn(const Turn& turn, std::int64_t step, std::int64_t total, bool ends_epoch);

/// Like is_turn(), for a later step. `epoch`: steps of an epoch; 0 if unknown. Then no step is planned for
/// When::epoch.
bool is_planned(const Turn& turn, std::int64_t step, std::int64_t total, std::int64_t epoch);

}  // namespace octet::train
