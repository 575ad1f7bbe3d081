// cuDNN's attention backward with the same bits in every run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/attention_graphs.h"

namespace octet::ops::cuda {

/// Enqueues the graph `whole` (backward, fixed_order, not packed) in portions that `scratch_bytes` hold, and
/// returns true; or enqueues nothing and returns false, when even the smallest one wants more or cuDNN
/// refuses it. The portions depend on the graph and on scratch_bytes alone.
bool backward_in_fixed_order(cudaStream_t stream, int device, const GraphShape& whole, const GraphData& data,
                             std::size_t scratch_bytes);

}  // namespace octet::ops::cuda
