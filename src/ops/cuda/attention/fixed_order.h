// cuDNN's attention backward with the same bits in every run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/attention/graphs.h"

namespace octet::ops::cuda {

/// Enqueues the graph `whole` (backward, fixed_order, not packed) in portions that fit into `scratch_bytes`,
/// and returns true. If even the smallest portion needs more scratch, or if cuDNN refuses it, enqueues
/// nothing and returns false. The portions depend only on the graph and on scratch_bytes.
bool backward_in_fixed_order(cudaStream_t stream, int device, const GraphShape& whole, const GraphData& data,
                             std::size_t scratch_bytes);

/// Documents of different lengths, in the arrays of a micro-batch.
struct PackedBackward {
  /// The shape of all tokens as one document: batch 1, not packed.
  GraphShape whole;
  /// stats are [q_heads, tokens]. The scratch also holds copies of documents.
  GraphData data;
  Documents documents;
};

/// Like backward_in_fixed_order, for documents of different lengths. The portions depend only on these
/// lengths, the shape and scratch_bytes.
bool packed_backward_in_fixed_order(cudaStream_t stream, int device, const PackedBackward& args);

}  // namespace octet::ops::cuda
