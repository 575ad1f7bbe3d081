#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Residual add and layer norm (Ba et al. 2016, arXiv:1607.06450) in one pass:
///   x = residual + delta;  y = (x - mean(x)) * rstd * w + b,  rstd = 1 / sqrt(mean((x - mean(x))²) + eps).
struct LayerNormArgs {
  ConstMatrix residual;  ///< [rows, hidden] T
  ConstMatrix delta;     ///< [rows, hidden] T, or data == nullptr: nothing is added
  Matrix sum;            ///< [rows, hidden] T: x; may be `residual` itself; data == nullptr: not kept
  const float* weight = nullptr;  ///< [hidden] f32
  const float* bias = nullptr;    ///< [hidden] f32, or null
  float eps = 1e-5f;
  /// [rows, hidden] T: y; may be `residual` itself; data == nullptr: only the FP8 copy is wanted
  Matrix out;
  float* mean = nullptr;  ///< [rows] f32
  float* rstd = nullptr;  ///< [rows] f32
  QuantizeInto quantize;  ///< optional FP8 copy of y
};
/// x is rounded to T before its norm is computed, so backward and forward read the same x.
void layer_norm(Stream& stream, const LayerNormArgs& args);

/// d_residual += d/dx of the norm; d_weight += Σ_rows dy * (x - mean) * rstd; d_bias += Σ_rows dy. Rows are
/// summed in a fixed order.
struct LayerNormBackwardArgs {
  ConstMatrix dy;                 ///< [rows, hidden] T
  ConstMatrix x;                  ///< [rows, hidden] T: `sum` of forward
  const float* mean = nullptr;    ///< [rows], from forward
  const float* rstd = nullptr;    ///< [rows], from forward
  const float* weight = nullptr;  ///< [hidden] f32
  Matrix d_residual;              ///< [rows, hidden] T, in and out; may be dy itself if it is overwritten
  bool accumulate = true;         ///< false: d_residual is overwritten
  float* d_weight = nullptr;      ///< [hidden] f32, added to; null: not wanted
  float* d_bias = nullptr;        ///< [hidden] f32, added to; null: not wanted
  QuantizeInto quantize;          ///< optional FP8 copy of d_residual
  Workspace workspace;            ///< at least layer_norm_backward_workspace bytes
};
void layer_norm_backward(Stream& stream, const LayerNormBackwardArgs& args);
std::size_t layer_norm_backward_workspace(const Device& device, std::int64_t rows, std::int64_t hidden);

}  // namespace octet::ops
