// The parts of delta_rule_backward(). prepare_chunks() runs before them.
#pragma once

#include "cuda/delta/chunks.cuh"

namespace octet::ops::cuda {

/// Writes the gradients of the states after all chunks except the last of a document to work.d_states, and Z
/// (see states_backward.cu) to the columns of values of d_qkv.
template <typename T>
void states_backward(cudaStream_t stream, const DeltaRuleBackwardArgs& args, const DeltaWork<T>& work,
                     const DeltaVector& vector);

/// Computes all gradients from the results of states_backward().
template <typename T>
void chunks_backward(cudaStream_t stream, const DeltaRuleBackwardArgs& args, const DeltaWork<T>& work,
                     const DeltaVector& vector);

}  // namespace octet::ops::cuda
