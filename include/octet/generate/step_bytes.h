// Bytes that a decoding step must read.
#pragma once

#include <cstdint>

#include "octet/generate/decoder.h"

namespace octet::generate {

/// Bytes of all weights that a step reads. An embedding table that is not also the head is excluded: a step
/// reads one row of it per token. For a mixture of experts, the expected number of experts is counted, if
/// each of `tokens` tokens chooses its experts uniformly.
double step_weight_bytes(const Decoder& decoder, std::int64_t tokens);
/// Parameters that multiply a token: all except that embedding table and the experts that are not chosen.
double parameters_of_token(const Decoder& decoder);
/// Bytes of keys and values that a token reads after `before` earlier tokens.
double step_cache_bytes(const DecoderOptions& options, std::int64_t before);

}  // namespace octet::generate
