// cuDNN's attention backward with the same bits in every run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/attention/graphs.h"

namespace octet::ops::cuda {

/// Enqueues the graph `whole` (backward, fixed_order, not packed) in portions that `scratch_bytes` hold, and
/// returns true; or enqueues nothing and returns false, when even the smallest one wants more or cuDNN
/// refuses it. The portions depend on the graph and on scratch_bytes alone.
bool backward_in_fixed_order(cudaStream_t stream, int device, const GraphShape& whole, const GraphData& data,
                             std::size_t scratch_bytes);

/// Documents of different lengths, in the arrays of a micro-batch.
struct PackedBackward {
  /// As if all tokens were one document: batch 1, not packed.
  GraphShape whole;
  /// stats are [q_heads, tokens]; the scratch holds copies of documents too.
  GraphData data;
  Documents documents;
};

/// As backward_in_fixed_order, for documents of different lengths. The portions depend on those lengths, the
/// shape and scratch_bytes alone.
bool packed_backward_in_fixed_order(cudaStream_t stream, int device, const PackedBackward& args);

}  // namespace octet::ops::cuda
