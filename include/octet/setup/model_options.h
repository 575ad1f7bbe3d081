// Options of the model of a run, from the configuration, and the parts of it that are trained.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/config/keys.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/plan/memory.h"
#include "octet/precision/scaling.h"
#include "octet/runtime/instance.h"

namespace octet::setup {

/// Precision of a run as the configuration asks for it. Throws Error for combinations that make no sense.
precision::Recipe recipe_of(const config::PrecisionKeys& config);

/// Returns the model that a run trains: with stage: rm, the reward model of `architecture`. Throws Error
/// (usage) like model::as_reward_model(), and for a reward model with another stage. `where`: its folder.
model::Architecture model_of_stage(const config::TemplateKeys& stage, model::Architecture architecture,
                                   const std::string& where);

/// Throws Error (usage) for a reward model.
void require_writes_text(const model::Architecture& architecture, const std::string& where);

/// Returns InstanceOptions::group_size: a number of ranks, or a value of runtime/group_size.h.
std::int64_t group_size_of(const config::ShardingKeys& config);

/// Sharding, precision, optimizer and recomputation of a run, for micro-batches of `max_tokens` tokens in
/// documents of at most `max_length`.
runtime::InstanceOptions instance_options(const config::Config& config,
                                          const model::Architecture& architecture, std::int64_t max_tokens,
                                          std::int64_t max_length, std::int64_t max_documents);

/// The levels among which the memory of the device decides. One level if the configuration sets all keys.
std::vector<plan::Level> levels_of(const config::ComputeKeys& config, DeviceKind kind);

/// Whether a configuration trains some of the model's own weights and freezes the others.
bool trains_parts(const config::TuningKeys& config);

/// The trained modules of finetuning_type: freeze, by LLaMA-Factory's keys: the modules in
/// freeze_trainable_modules of the last freeze_trainable_layers blocks (below 0: of the first blocks), and
/// outside of the blocks the modules in freeze_extra_modules. Throws Error (usage) with the valid names for
/// an unknown module, and if no module is trained.
model::Tuning freeze_tuning(const config::TuningKeys& config, const model::Architecture& architecture);

}  // namespace octet::setup
