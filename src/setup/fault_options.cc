#include "octet/setup/fault_options.h"

namespace octet::setup {

FaultAction fault_action(const config::FaultKeys& config) {
  return config.sdc_action == "rollback" ? FaultAction::rollback : FaultAction::stop;
}

SpikeOptions spike_options(const config::FaultKeys& config) {
  return {.loss_factor = config.loss_spike_factor,
          .norm_factor = config.grad_norm_spike_factor,
          .action = config.spike_action == "rollback" ? SpikeAction::rollback
                    : config.spike_action == "stop"   ? SpikeAction::stop
                                                      : SpikeAction::skip};
}

}  // namespace octet::setup
