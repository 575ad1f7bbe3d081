// How large the cache of a decoder is.
#pragma once

#include "octet/generate/decoder.h"
#include "octet/model/kv_cache.h"
#include "paged_cache.h"

namespace octet::generate {

/// Of a model with windows: its cache holds them for all tokens of a sequence that a pass takes.
inline constexpr std::int64_t kWindowedPiece = 512;

/// Tokens of a sequence that a pass takes at most.
std::int64_t piece_of(const DecoderOptions& options);
model::KvLayout cache_layout(const DecoderOptions& options);
/// The shape of the cache that is asked for. Throws Error (usage) where it does not hold one sequence.
CacheShape asked_cache(const DecoderOptions& options, const model::KvLayout& layout);

}  // namespace octet::generate
