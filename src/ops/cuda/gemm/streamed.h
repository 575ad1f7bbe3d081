// Forward GEMMs of 17 to 64 tokens in E4M3 with a weight that stands: bound by the bytes of the weight, which
// the copy engine streams.
#pragma once

#include "octet/device/device.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

/// The most tokens of such a GEMM.
inline constexpr std::int64_t kStreamedTokens = 64;

/// Enqueues the GEMM and returns true where it is a forward one of E4M3 operands with scales of whole rows,
/// whose weight stands (GemmArgs::b_stands), for more tokens than multiply_few_tokens() is as fast with, on a
/// Hopper GPU; else false, and nothing is enqueued. `partials` is scratch of kLibraryWorkspace bytes. Runs of
/// 256 values (128 from 33 tokens on) are summed in about 14 bits and added in fp32, in an order that depends
/// on the shape of the weight, on the GPU's multiprocessors and on the number of tokens (up to 32, 64) alone,
/// not on values or on other work.
bool multiply_streamed(Stream& stream, const GemmArgs& args, void* partials);

}  // namespace octet::ops::cuda
