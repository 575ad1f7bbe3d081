// Options for silent faults of bits and steps, from the configuration.
#pragma once

#include <cstdint>

#include "octet/config/keys.h"

namespace octet::setup {

/// What becomes of a run after a check that did not agree (sdc_action).
enum class FaultAction { stop, rollback };
FaultAction fault_action(const config::FaultKeys& config);

/// What becomes of a step with a spike, or with no finite loss or gradient (spike_action).
enum class SpikeAction { skip, rollback, stop };

struct SpikeOptions {
  double loss_factor = 0;  ///< of the median loss; 0: none is a spike
  double norm_factor = 0;  ///< of the median norm; 0: none is one
  SpikeAction action = SpikeAction::skip;
};
SpikeOptions spike_options(const config::FaultKeys& config);

}  // namespace octet::setup
