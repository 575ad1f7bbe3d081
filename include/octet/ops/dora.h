// What DoRA adds to a low-rank adapter (Liu et al. 2024, arXiv:2402.09353): columns of a linear layer's
// output are scaled by magnitude / norm, with the norms of the rows of the adapted weight.
#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// norm[j] = |W[j, :] + factor * sum_r B[j, r] A[r, :]|, scale[j] = magnitude[j] / norm[j], and 0 where the
/// norm is. Sums are made in fp32, in an order that depends on shapes alone.
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

/// out = x * scale (by columns) + bias + addend, added up in fp32 and rounded once.
struct ScaleColumnsArgs {
  ConstMatrix x;                 ///< [rows, cols] T
  const float* scale = nullptr;  ///< [cols]
  const float* bias = nullptr;   ///< [cols], or null
  ConstMatrix addend;            ///< [rows, cols] T, or no data
  Matrix out;                    ///< [rows, cols] T; may be x or addend itself
};
void scale_columns(Stream& stream, const ScaleColumnsArgs& args);

/// sums[j] += sum over rows of x[:, j] * y[:, j] / divisor[j], in fp32, 64 rows at a time; nothing is added
/// where the divisor is 0.
struct DotColumnsArgs {
  ConstMatrix x, y;                ///< [rows, cols] T
  const float* divisor = nullptr;  ///< [cols]
  float* sums = nullptr;           ///< [cols]
};
void dot_columns(Stream& stream, const DotColumnsArgs& args);

}  // namespace octet::ops
