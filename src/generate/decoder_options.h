// What a decoder's options mean for the model that it builds or finds.
#pragma once

#include "octet/generate/decoder.h"

namespace octet::generate {

/// The same options. Throws Error (usage) where `strict` cannot be on that device.
DecoderOptions possible(const DecoderOptions& options, const Device& device);
/// Of a rank's share of a model. Throws Error (usage) as model::require_splits does.
DecoderOptions options_for(const Team& team, DecoderOptions options);
/// Beside a model in training, which says what is computed and how.
DecoderOptions options_for(const runtime::Instance& model, DecoderOptions options);

/// A model of the decoder's own; `sums`: of layers that are split, else null.
runtime::InstanceOptions instance_options(const DecoderOptions& options, model::PartialSums* sums);
/// Of a core beside one in training, which fills micro-batches up as that one does.
model::TransformerOptions core_beside(const runtime::Instance& model, const DecoderOptions& options);

}  // namespace octet::generate
