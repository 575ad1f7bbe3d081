// What a decoding step cannot do without reading.
#pragma once

#include <cstdint>

#include "octet/generate/decoder.h"

namespace octet::generate {

/// Bytes of all weights but an embedding table that is no head, of which a step reads a row a token. Of a
/// mixture of experts those that are expected to be taken, where each of `tokens` tokens draws its own
/// evenly.
double step_weight_bytes(const Decoder& decoder, std::int64_t tokens);
/// Parameters that a token is multiplied with: all but such a table, and the experts that it does not take.
double parameters_of_token(const Decoder& decoder);
/// Bytes of keys and values that one token sees behind `before` others.
double step_cache_bytes(const DecoderOptions& options, std::int64_t before);

}  // namespace octet::generate
