// Attention by cuDNN: bf16, without soft cap, for micro-batches whose lengths the host knows. Everything
// else, and machines without cuDNN, are left to our own kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "octet/ops/attention.h"

namespace octet::ops::cuda {

/// Enqueues and returns true, or returns false when cuDNN does not take this call.
bool cudnn_attention(cudaStream_t stream, int device, const AttentionArgs& args);
/// fixed_order: equal inputs give equal bits, which takes longer, and more scratch the longer a document is.
/// Otherwise the gradient of queries is summed in an order that varies from run to run.
bool cudnn_attention_backward(cudaStream_t stream, int device, const AttentionBackwardArgs& args,
                              bool fixed_order);

}  // namespace octet::ops::cuda
