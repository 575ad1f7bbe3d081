// Checks whether a checkpoint belongs to the model of a run that continues from it.
#pragma once

#include <string>

#include "octet/checkpoint/checkpoint.h"
#include "octet/model/architecture.h"
#include "octet/text/tokenizer.h"

namespace octet::runtime {

/// Returns the facts about the model that a checkpoint stores under "model": the settings that determine the
/// computed function, and a hash of the files that determine tokenization.
Json model_state(const model::Architecture& architecture, const text::Tokenizer& tokenizer);

/// Throws Error (usage) if `folder` holds another model than the checkpoint's run trained. The Error names
/// the differences with both values. If `tokenizer` is null, only the model is compared.
void require_same_model(const checkpoint::Checkpoint& checkpoint, const model::Architecture& architecture,
                        const text::Tokenizer* tokenizer, const std::string& folder);

}  // namespace octet::runtime
