// Forward GEMMs of few tokens, as in decoding. The time is bound by one read of the weight.
#pragma once

#include "octet/device/device.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

/// The maximum number of tokens of multiply_few_tokens().
constexpr std::int64_t kFewTokens = 32;

/// Enqueues the GEMM and returns true if all conditions hold: at most kFewTokens tokens, E4M3 operands with
/// scales of whole rows, dense, aligned to 16 bytes, and an inner dimension that is a multiple of 64.
/// Otherwise returns false and enqueues nothing. Sums are fp32, in an order that depends only on the range of
/// the number of tokens (up to 8, 16, 32).
bool multiply_few_tokens(Stream& stream, const GemmArgs& args);

}  // namespace octet::ops::cuda
