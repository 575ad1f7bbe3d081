// Forward GEMMs of few tokens with a constant weight (GemmArgs::b_stands). The time is bound by the bytes of
// the weight, which the copy engine streams.
#pragma once

#include "octet/device/device.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

/// The maximum number of tokens of multiply_streamed().
inline constexpr std::int64_t kStreamedTokens = 64;

/// Enqueues the GEMM and returns true if it is supported and fast. Otherwise returns false and enqueues
/// nothing. Requirements: a Hopper GPU, forward, GemmArgs::b_stands, and at most kStreamedTokens tokens. E4M3
/// operands need scales of whole rows and more tokens than multiply_few_tokens() handles equally fast. bf16
/// operands need more tokens than the library handles equally fast, and no fixed summation order.
///
/// Sums are fp32. In E4M3, sums of runs of 256 values (128 from 33 tokens on) have about 14 bits. The order
/// depends only on the shape of the weight, the number of multiprocessors, and the range of the number of
/// tokens (up to 16, 32, 64). It does not depend on values or on other work.
bool multiply_streamed(Stream& stream, const GemmArgs& args);

/// Rounding of a bf16 D with an addend.
enum class Addition {
  of_rounded,  ///< the product is rounded before the addition
  at_once,     ///< only the sum is rounded
};

/// Enqueues a forward GEMM of up to kStreamedTokens bf16 tokens with GemmArgs::b_stands on a Hopper GPU, in
/// whole tiles. Each sum runs over the inner dimension from the first 16 values to the last in tensor-core
/// instructions, for every shape. A bias is rounded to the dtype of D, like in the library. Returns false and
/// enqueues nothing for other GEMMs.
bool multiply_streamed_in_order(Stream& stream, const GemmArgs& args, Addition addition);

}  // namespace octet::ops::cuda
