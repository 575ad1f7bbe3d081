#pragma once

#include <string>

#include "octet/checkpoint/checkpoint.h"
#include "octet/model/architecture.h"
#include "octet/text/tokenizer.h"

namespace octet::runtime {

/// Reads the architecture that a folder's config.json describes, with the names that its weights, if it has
/// any, give their tensors. If config.json ties the head to the embedding and the weights hold another head,
/// the head is not tied, as in transformers 5, and a warning is logged. Throws Error as read_architecture and
/// WeightFolder do.
model::Architecture read_model(const std::string& folder);

/// False for a folder without weights. Throws Error when it has weights
/// in a format that is not read: they would be left out.
bool has_weights(const std::string& folder);

/// Throws Error (usage) for a folder without weights, and as has_weights(). `otherwise`: advice in addition
/// to fetching the weights.
void require_weights(
    const std::string& folder,
    const std::string& otherwise = "set train_from_scratch: true to start from random weights");

/// Throws Error (usage) when a checkpoint is of another model than the folder's config.json describes.
void require_model_of(const checkpoint::Checkpoint& checkpoint, const std::string& folder);

/// Compares files of a model folder and warns if they contradict each other: end tokens, dtype, one file of
/// weights next to an index of shards. `tokenizer` is the tokenizer of the folder.
void compare_sources(const text::Tokenizer& tokenizer, const std::string& folder);

/// As compare_sources(). Throws Error (usage) when the tokenizer of `folder` has tokens that the model has no
/// rows for.
void require_fit(const text::Tokenizer& tokenizer, const model::Architecture& architecture,
                 const std::string& folder);

}  // namespace octet::runtime
