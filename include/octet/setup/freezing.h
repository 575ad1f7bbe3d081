#pragma once

#include "octet/config/config.h"
#include "octet/model/architecture.h"

namespace octet::setup {

/// Whether a configuration trains some of the model's own weights and freezes the others.
bool trains_parts(const config::Config& config);

/// What finetuning_type: freeze trains, by LLaMA-Factory's keys: of the last freeze_trainable_layers blocks
/// (below 0: of the first ones) the modules that freeze_trainable_modules names, and outside of the blocks
/// those of freeze_extra_modules. Throws Error (usage), with the names there are, for a module that the model
/// does not have there, and where nothing is left to train.
model::Tuning freeze_tuning(const config::Config& config, const model::Architecture& architecture);

}  // namespace octet::setup
