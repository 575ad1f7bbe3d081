// Where keys and values lie in a KV cache, and how attention of decoding goes over them in a fixed order.
#pragma once

#include <cstdint>

#include "octet/ops/attention.h"

namespace octet::ops::cpu {

/// Writes the rows of the cache in which keys [begin, begin + count) of a slot lie.
void find_rows(const CachedAttentionArgs& args, std::int64_t slot, std::int64_t begin, std::int64_t count,
               std::int64_t* rows);

/// The tokens' keys and values are in the cache: each token attends by the tiles of training's attention,
/// which are counted from position 0 of its sequence (CachedAttentionArgs::fixed_order).
void cached_attention_in_order(const CachedAttentionArgs& args);

}  // namespace octet::ops::cpu
