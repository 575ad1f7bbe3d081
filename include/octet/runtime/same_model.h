// Whether a checkpoint belongs to the model that a run would go on with.
#pragma once

#include <string>

#include "octet/checkpoint/checkpoint.h"
#include "octet/model/architecture.h"
#include "octet/text/tokenizer.h"

namespace octet::runtime {

/// What a checkpoint's state keeps of its model, under "model": all that decides the function it computes,
/// and a hash of the files that decide which tokens a text becomes.
Json model_state(const model::Architecture& architecture, const text::Tokenizer& tokenizer);

/// Throws Error (usage), naming what differs with both values, when `folder` holds another model than the
/// checkpoint's run trained. `tokenizer` may be null: then the model alone is compared.
void require_same_model(const checkpoint::Checkpoint& checkpoint, const model::Architecture& architecture,
                        const text::Tokenizer* tokenizer, const std::string& folder);

}  // namespace octet::runtime
