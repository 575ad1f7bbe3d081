// The two implementations of attention on CUDA. Our own kernels support the whole contract with heads of at
// most 256. cuDNN supports less and is faster.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/scratch.h"
#include "octet/ops/attention.h"

namespace octet::ops::cuda {

void own_attention(cudaStream_t stream, const AttentionArgs& args);
/// Computes attention in a fixed order (AttentionArgs::fixed_order) with the kernels of cached attention. The
/// workspace holds attention_in_order_workspace bytes.
void own_attention_in_order(cudaStream_t stream, const AttentionArgs& args);
/// Deterministic: each gradient is summed by one block, in token order. `delta` is [q_heads, tokens].
void own_attention_backward(cudaStream_t stream, const AttentionBackwardArgs& args, float* delta);
void own_cached_attention(cudaStream_t stream, const CachedAttentionArgs& args);

}  // namespace octet::ops::cuda
