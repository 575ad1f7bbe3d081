// The sides of attention on CUDA: our own kernels, which take everything the contract allows with heads of at
// most 256, and cuDNN's, which take less and are faster.
#pragma once

#include <cuda_runtime_api.h>

#include "octet/ops/attention.h"

namespace octet::ops::cuda {

inline constexpr std::int64_t kMostHeadDim = 256;

void own_attention(cudaStream_t stream, const AttentionArgs& args);
/// In a fixed order (AttentionArgs::fixed_order), by the kernels of cached attention.
/// The workspace holds attention_in_order_workspace bytes.
void own_attention_in_order(cudaStream_t stream, const AttentionArgs& args);
/// Deterministic: every gradient is summed by one block, in the order of the tokens. `delta` [q_heads,
/// tokens].
void own_attention_backward(cudaStream_t stream, const AttentionBackwardArgs& args, float* delta);
void own_cached_attention(cudaStream_t stream, const CachedAttentionArgs& args);

}  // namespace octet::ops::cuda
