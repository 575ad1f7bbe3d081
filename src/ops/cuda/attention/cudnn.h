// Attention by cuDNN: bf16, without soft cap, for micro-batches with document lengths on the host. Our own
// kernels handle all other calls, and machines without cuDNN.
#pragma once

#include <cuda_runtime_api.h>

#include "octet/ops/attention.h"

namespace octet::ops::cuda {

/// Enqueues forward and returns true, or returns false if cuDNN does not support this call.
bool cudnn_attention(cudaStream_t stream, int device, const AttentionArgs& args);
/// Enqueues backward and returns true, or returns false if cuDNN does not support this call. With
/// fixed_order, equal inputs give equal bits. This is slower, and its scratch grows with the document length.
/// Otherwise the summation order of the gradient of queries varies from run to run.
bool cudnn_attention_backward(cudaStream_t stream, int device, const AttentionBackwardArgs& args,
                              bool fixed_order);

}  // namespace octet::ops::cuda
