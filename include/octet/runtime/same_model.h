// Whether a checkpoint belongs to the model of a run: the facts of the model, and the keys of its
// config.json.
#pragma once

#include <string>

#include "octet/base/json_fwd.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/model/architecture.h"
#include "octet/text/tokenizer.h"

namespace octet::runtime {

/// Returns the facts about the model that a checkpoint stores under "model": the settings that determine the
/// computed function, and a hash of the files that determine tokenization.
Json model_state(const model::Architecture& architecture, const text::Tokenizer& tokenizer);

/// Returns whether the checkpoint is from a run that trained a reward model.
bool trained_reward_model(const checkpoint::Checkpoint& checkpoint);

/// Throws Error (usage) if `folder` holds another model than the checkpoint's run trained. The Error names
/// the differences with both values. If `tokenizer` is null, only the model is compared.
void require_same_model(const checkpoint::Checkpoint& checkpoint, const model::Architecture& architecture,
                        const text::Tokenizer* tokenizer, const std::string& folder);

// The keys of a model's config.json and generation_config.json that changed since a checkpoint was written.

/// Returns the part of a checkpoint's state under "model_config": the keys of config.json and of
/// generation_config.json. Long values are hashed. Keys that name the writer of the file are left out.
Json config_state(const std::string& folder);
/// Returns the keys that differ between two such states with both values, or "" if none does. `before` may be
/// null: the checkpoint kept none.
std::string config_changes(const Json& before, const Json& now);

}  // namespace octet::runtime
