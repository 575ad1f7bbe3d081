// Several GEMMs of one token, each of what the one in front of it made, as one kernel. Between kernels the
// memory of a GPU is idle while the last blocks of one end and those of the next find their token; a kernel
// that knows what comes next asks for its weights meanwhile.
#pragma once

#include <span>

#include "octet/ops/lone_gemm.h"

namespace octet::ops {

/// The most GEMMs of a chain: attention's output, gate and up, down, and the next block's queries, keys and
/// values.
inline constexpr std::size_t kLoneChain = 4;

/// Whether lone_chain takes these: more than one that has_lone_gemm() says yes to, each of which reads as x
/// what the one in front of it writes. On a GPU of the Hopper generation with weights in E4M3, one token,
/// shapes that fill its tiles, and queries, keys and values at the end only. A CPU does where it has lone
/// GEMMs.
bool has_lone_chain(const Device& device, std::span<const LoneGemmArgs> gemms);

/// Enqueues what has_lone_chain() has said yes to. Each may write over what those in front of it read. On a
/// CPU the bits are those of lone_gemm() one after the other; on a GPU sums have another order, and the
/// tensor cores keep about 14 bits of what 32 products add up to, fp32 all bits of what these make together.
void lone_chain(Stream& stream, std::span<const LoneGemmArgs> gemms);

}  // namespace octet::ops
