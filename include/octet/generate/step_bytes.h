// What a decoding step cannot do without reading.
#pragma once

#include <cstdint>

#include "octet/generate/decoder.h"

namespace octet::generate {

/// Bytes of all weights but an embedding table that is no head, of which a step reads a row a token.
double step_weight_bytes(const Decoder& decoder);
/// Bytes of keys and values that one token sees behind `before` others.
double step_cache_bytes(const DecoderOptions& options, std::int64_t before);

}  // namespace octet::generate
