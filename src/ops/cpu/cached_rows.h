// Places of keys and values in a KV cache, and decoding attention in a fixed order.
#pragma once

#include <cstdint>

#include "octet/ops/attention.h"

namespace octet::ops::cpu {

/// Writes the cache rows of keys [begin, begin + count) of a slot to `rows`.
void find_rows(const CachedAttentionArgs& args, std::int64_t slot, std::int64_t begin, std::int64_t count,
               std::int64_t* rows);

/// Each token attends by the tiles of training attention, counted from position 0 of its sequence
/// (CachedAttentionArgs::fixed_order). The tokens' keys and values must already be in the cache.
void cached_attention_in_order(const CachedAttentionArgs& args);

}  // namespace octet::ops::cpu
