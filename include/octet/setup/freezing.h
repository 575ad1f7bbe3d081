#pragma once

#include "octet/config/keys.h"
#include "octet/model/architecture.h"

namespace octet::setup {

/// Whether a configuration trains some of the model's own weights and freezes the others.
bool trains_parts(const config::TuningKeys& config);

/// The trained modules of finetuning_type: freeze, by LLaMA-Factory's keys: the modules in
/// freeze_trainable_modules of the last freeze_trainable_layers blocks (below 0: of the first blocks), and
/// outside of the blocks the modules in freeze_extra_modules. Throws Error (usage) with the valid names for
/// an unknown module, and if no module is trained.
model::Tuning freeze_tuning(const config::TuningKeys& config, const model::Architecture& architecture);

}  // namespace octet::setup
