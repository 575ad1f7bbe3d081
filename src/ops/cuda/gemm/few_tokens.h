// Forward GEMMs of few tokens, as decoding has them: the weight is read once, and little else is done.
#pragma once

#include "octet/device/device.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

/// The most tokens of such a GEMM.
constexpr std::int64_t kFewTokens = 32;

/// Enqueues the GEMM and returns true where it is one of few tokens with E4M3 operands that are scaled by
/// whole rows, dense and on 16-byte boundaries, and its inner dimension is a multiple of 64; else false, and
/// nothing is enqueued. Sums are fp32, in an order that depends on the number of tokens (up to 8, 16, 32)
/// alone.
bool multiply_few_tokens(Stream& stream, const GemmArgs& args);

}  // namespace octet::ops::cuda
