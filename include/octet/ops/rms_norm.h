#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Residual add and root-mean-square norm (Zhang and Sennrich 2019, arXiv:1910.07467) in one pass:
///   x = residual + delta;  y = x * rstd * w,  rstd = 1 / sqrt(mean(x²) + eps).
struct RmsNormArgs {
  ConstMatrix residual;  ///< [rows, hidden] T
  ConstMatrix delta;     ///< [rows, hidden] T, or data == nullptr: nothing is added
  Matrix sum;            ///< [rows, hidden] T: x; may be `residual` itself; data == nullptr: not kept
  const float* weight = nullptr;  ///< [hidden] f32
  float eps = 1e-5f;
  bool one_plus_weight = false;  ///< y = x * rstd * (1 + w), as in Gemma
  /// [rows, hidden] T: y; may be `residual` itself; data == nullptr: only the FP8 copy is wanted
  Matrix out;
  float* rstd = nullptr;  ///< [rows] f32
  QuantizeInto quantize;  ///< optional FP8 copy of y
};
/// x is rounded to T before its norm is computed, so backward and forward read the same x.
void rms_norm(Stream& stream, const RmsNormArgs& args);

/// d_residual += d/dx of the norm; d_weight += Σ_rows dy * x * rstd (rows summed in a fixed order).
struct RmsNormBackwardArgs {
  ConstMatrix dy;                 ///< [rows, hidden] T
  ConstMatrix x;                  ///< [rows, hidden] T: `sum` of forward
  const float* rstd = nullptr;    ///< [rows]
  const float* weight = nullptr;  ///< [hidden] f32
  bool one_plus_weight = false;
  Matrix d_residual;          ///< [rows, hidden] T, in and out; may be dy itself if it is overwritten
  bool accumulate = true;     ///< false: d_residual is overwritten
  float* d_weight = nullptr;  ///< [hidden] f32, added to; null: not wanted
  QuantizeInto quantize;      ///< optional FP8 copy of d_residual
  Workspace workspace;        ///< at least rms_norm_backward_workspace bytes
};
void rms_norm_backward(Stream& stream, const RmsNormBackwardArgs& args);
std::size_t rms_norm_backward_workspace(const Device& device, std::int64_t rows, std::int64_t hidden);

}  // namespace octet::ops
