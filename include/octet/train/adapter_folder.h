#pragma once

#include <string>

#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"

namespace octet::train {

/// What a checkpoint's state keeps, under "adapters", of what it does not hold: the adapters' shapes (with
/// finetuning_type: freeze, what is trained) and
/// factors, and a fingerprint of the base model's weights. Null for runs that train everything.
Json adapter_state(const config::Config& config);

/// Throws Error (usage) when a run with this configuration would go on over another base model, or with other
/// adapters, than the checkpoint's.
void require_same_adapters(const checkpoint::Checkpoint& checkpoint, const config::Config& config);

/// Writes the adapters of a checkpoint as PEFT does: adapter_config.json and adapter_model.safetensors, in
/// fp32; other files of the folder stay. `config`: of the run that wrote the checkpoint. Returns the names of
/// the files.
std::vector<std::string> export_adapter(const std::string& folder, const std::string& checkpoint,
                                        const config::Config& config);

}  // namespace octet::train
