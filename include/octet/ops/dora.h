// The addition of DoRA to a low-rank adapter (Liu et al. 2024, arXiv:2402.09353). Columns of the output of a
// linear layer are scaled by magnitude / norm. Each row of the adapted weight has a norm.
#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// norm[j] = |W[j, :] + factor * sum_r B[j, r] A[r, :]|, scale[j] = magnitude[j] / norm[j], or 0 if norm[j]
/// is 0. Sums are in fp32, in an order that depends only on shapes.
struct DoraScaleArgs {
  Operand weight;  ///< W [out, in] f32, bf16, or FP8 with one scale
  ConstMatrix a;   ///< [rank, in] T
  ConstMatrix b;   ///< [out, rank] T
  float factor = 1.0f;
  const float* magnitude = nullptr;  ///< [out]
  float* scale = nullptr;            ///< [out]
  float* norm = nullptr;             ///< [out]
};
void dora_scale(Stream& stream, const DoraScaleArgs& args);

/// out = x * scale (by columns) + bias + addend, summed in fp32 and rounded once.
struct ScaleColumnsArgs {
  ConstMatrix x;                 ///< [rows, cols] T
  const float* scale = nullptr;  ///< [cols]
  const float* bias = nullptr;   ///< [cols], or null
  ConstMatrix addend;            ///< [rows, cols] T, or no data
  Matrix out;                    ///< [rows, cols] T; may be x or addend itself
};
void scale_columns(Stream& stream, const ScaleColumnsArgs& args);

/// sums[j] += sum over rows of x[:, j] * y[:, j] / divisor[j], in fp32, 64 rows at a time. If divisor[j] is
/// 0, nothing is added.
struct DotColumnsArgs {
  ConstMatrix x, y;                ///< [rows, cols] T
  const float* divisor = nullptr;  ///< [cols]
  float* sums = nullptr;           ///< [cols]
};
void dot_columns(Stream& stream, const DotColumnsArgs& args);

}  // namespace octet::ops
