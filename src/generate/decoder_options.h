// Adapts a decoder's options to its model.
#pragma once

#include "octet/generate/decoder.h"

namespace octet::generate {

/// Returns `options`. Throws Error (usage) if `strict` is not possible on `device`.
DecoderOptions possible(const DecoderOptions& options, const Device& device);
/// Adapts `options` to this rank's share of a model. Throws Error (usage) like model::require_splits.
DecoderOptions options_for(const Team& team, DecoderOptions options);
/// Adapts `options` to a model in training, which sets architecture and recipe.
DecoderOptions options_for(const runtime::Instance& model, DecoderOptions options);

/// Options of a model that the decoder owns. `sums`: for split layers, else null.
runtime::InstanceOptions instance_options(const DecoderOptions& options, model::PartialSums* sums);
/// Options of a second core for a model in training. Pads micro-batches like the core of that model.
model::TransformerOptions core_beside(const runtime::Instance& model, const DecoderOptions& options);

}  // namespace octet::generate
