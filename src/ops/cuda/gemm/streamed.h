// Forward GEMMs of few tokens with a weight that stands: bound by the bytes of the weight, which the copy
// engine streams.
#pragma once

#include "octet/device/device.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

/// The most tokens of such a GEMM.
inline constexpr std::int64_t kStreamedTokens = 64;

/// Enqueues the GEMM and returns true where it is a forward one whose weight stands (GemmArgs::b_stands), on
/// a Hopper GPU, of E4M3 operands with scales of whole rows for more tokens than multiply_few_tokens() is as
/// fast with, or of bf16 ones for more tokens than the library is as fast with, unless the order of sums is
/// fixed; else false, and nothing is enqueued. Sums are fp32, in E4M3 those of runs of 256 values (128 from
/// 33 tokens on), which have about 14 bits; in an order that depends on the shape of the weight, on the GPU's
/// multiprocessors and on the number of tokens (up to 16, 32, 64) alone, not on values or on other work.
bool multiply_streamed(Stream& stream, const GemmArgs& args);

/// How a bf16 D becomes a sum with what is added to it.
enum class Addition {
  of_rounded,  ///< the product is rounded before
  at_once,     ///< only the sum is rounded
};

/// Enqueues a forward GEMM of up to kStreamedTokens bf16 tokens with a weight that stands, on a Hopper GPU,
/// in whole tiles: each sum goes over the inner dimension from its first 16 values to its last in
/// instructions of the tensor cores, whatever the shape is. A bias is rounded to D's type, as the library's
/// is. False, and nothing is enqueued, for others.
bool multiply_streamed_in_order(Stream& stream, const GemmArgs& args, Addition addition);

}  // namespace octet::ops::cuda
