#pragma once

#include "octet/ops/delta_inputs.h"

namespace octet::ops {

/// The norm of each head of a delta rule's output, and its gate z, a part of the delta rule's projected
/// input:
///   y = o / sqrt(mean(o²) + eps) * weight * silu(z)   over the value_dim elements of a head
/// Computed in fp32 and rounded once.
struct GatedNormArgs {
  ConstMatrix o;          ///< [tokens, heads.values()] T
  ConstMatrix projected;  ///< [tokens, columns.width()] T: only the columns of gates are read
  DeltaColumns columns;
  const float* weight = nullptr;  ///< [value_dim] f32
  float eps = 1e-6f;
  Matrix out;             ///< [tokens, heads.values()] T, may be o; null data: only the FP8 copy is wanted
  QuantizeInto quantize;  ///< optional FP8 copy of y, with one scale or with scales of rows
};
void gated_norm(Stream& stream, const GatedNormArgs& args);

/// Gradients of gated_norm(). The sum for d_weight runs in an order that depends only on the shapes.
struct GatedNormBackwardArgs {
  ConstMatrix o;
  ConstMatrix projected;
  DeltaColumns columns;
  const float* weight = nullptr;
  float eps = 1e-6f;
  ConstMatrix d_out;          ///< [tokens, heads.values()] T
  Matrix d_o;                 ///< [tokens, heads.values()] T, may be d_out itself
  Matrix d_projected;         ///< [tokens, columns.width()] T: only the columns of gates are written
  float* d_weight = nullptr;  ///< added to; null: not wanted
  Workspace workspace;        ///< at least gated_norm_workspace bytes
};
void gated_norm_backward(Stream& stream, const GatedNormBackwardArgs& args);
/// Returns the bytes of scratch for gated_norm_backward() with at most `tokens` tokens.
std::size_t gated_norm_workspace(const Device& device, const DeltaHeads& heads, std::int64_t tokens);

}  // namespace octet::ops
