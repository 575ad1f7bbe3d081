// Several GEMMs of one token as one kernel. Each GEMM reads the output of the previous GEMM. Between separate
// kernels, GPU memory is idle while the last blocks of one kernel end and the blocks of the next wait for
// their token. A kernel of all GEMMs loads the next weights in this time.
#pragma once

#include <span>

#include "octet/ops/decode_gemm.h"

namespace octet::ops {

/// The maximum number of GEMMs of a chain: attention output, gate and up, down, and the queries, keys and
/// values of the next block.
inline constexpr std::size_t kDecodeChain = 4;

/// True if decode_chain supports these GEMMs. It needs at least two GEMMs, each supported by
/// has_decode_gemm(), and each reads as x the y of the previous one. A GPU must be of the Hopper generation,
/// with weights in E4M3, one token, and shapes that are multiples of its tiles. Only the last GEMM may be
/// `rotated`. A CPU supports a chain if it has GEMMs of few tokens.
bool has_decode_chain(const Device& device, std::span<const DecodeGemmArgs> gemms);

/// Enqueues the chain. Requires has_decode_chain(). Each GEMM may overwrite inputs of earlier GEMMs. On a
/// CPU, the bits are equal to consecutive calls of decode_gemm(). On a GPU, the order of sums differs. Tensor
/// cores keep about 14 bits of a sum of 32 products; sums of these are in full fp32.
void decode_chain(Stream& stream, std::span<const DecodeGemmArgs> gemms);

}  // namespace octet::ops
