// The size of a decoder's KV cache.
#pragma once

#include "octet/generate/decoder.h"
#include "octet/model/kv_cache.h"
#include "paged_cache.h"

namespace octet::generate {

/// Most tokens of a sequence per pass, if the model has windows. The cache holds the windows of all these
/// tokens.
inline constexpr std::int64_t kWindowedPiece = 512;

/// Most tokens of a sequence per pass.
std::int64_t piece_of(const DecoderOptions& options);
model::KvLayout cache_layout(const DecoderOptions& options);
/// Returns the shape of the cache for `options`. Throws Error (usage) if it does not hold one sequence.
CacheShape asked_cache(const DecoderOptions& options, const model::KvLayout& layout);

}  // namespace octet::generate
