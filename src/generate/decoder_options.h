// Adapts a decoder's options to its model, and computes the size of its KV cache.
#pragma once

#include "octet/generate/decoder.h"
#include "octet/model/kv_cache.h"
#include "paged_cache.h"

namespace octet::generate {

// The size of a decoder's KV cache.

/// Most tokens of a sequence per pass, if the model has windows. The cache holds the windows of all these
/// tokens.
inline constexpr std::int64_t kWindowedPiece = 512;

/// Most tokens of a sequence per pass.
std::int64_t piece_of(const DecoderOptions& options);
model::KvLayout cache_layout(const DecoderOptions& options);
/// Returns the shape of the cache for `options`. Throws Error (usage) if it does not hold one sequence.
CacheShape asked_cache(const DecoderOptions& options, const model::KvLayout& layout);

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
