#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// *amax = max(*amax, max |x|). A NaN in x makes it NaN. Does nothing if `skip` (device; may be null) holds a
/// non-zero value, as in a step that changes nothing.
void amax(Stream& stream, ConstMatrix x, float* amax, const std::int32_t* skip = nullptr);

/// Writes the FP8 copies of x (f32 or bf16) that `into` requests, and raises its amax.
void quantize(Stream& stream, ConstMatrix x, const QuantizeInto& into);

/// Like quantize() for each of `count` matrices of equal shape, which are contiguous, as are their copies.
/// Each has its own scale, amax and statistics: `into` names the first of `count` consecutive ones. With
/// `skip`, only the amax may be wanted; like amax(), the op then does nothing if *skip (device) is not zero.
struct QuantizeEachArgs {
  ConstMatrix x;           ///< [count * rows, cols] f32 or bf16, dense
  std::int64_t count = 0;  ///< at most 65535
  QuantizeInto into;       ///< row: like x; transposed: [cols, rows] for each matrix
  const std::int32_t* skip = nullptr;
};
void quantize_each(Stream& stream, const QuantizeEachArgs& args);

/// to[c, r] = from[r, c] of bytes: computes the missing second layout of an FP8 matrix.
struct TransposeArgs {
  const std::uint8_t* from = nullptr;  ///< [rows, cols], dense
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint8_t* to = nullptr;  ///< [cols, rows], dense
};
void transpose(Stream& stream, const TransposeArgs& args);

/// Current scaling: scale[i] = fp8_max(format[i]) / amax[i], scale_inv[i] = 1 / scale[i]. If amax is zero,
/// infinity or NaN, the scale is 1. An infinite quotient becomes FLT_MAX (TransformerEngine's recipe_common).
struct CurrentScaleArgs {
  const float* amax = nullptr;            ///< [count]
  const std::uint8_t* formats = nullptr;  ///< [count] DType values, device
  float* scale = nullptr;                 ///< [count]
  float* scale_inv = nullptr;             ///< [count], `inverse_stride` apart
  std::int64_t count = 0;
  std::int64_t inverse_stride = 1;
};
void current_scale(Stream& stream, const CurrentScaleArgs& args);

/// Delayed scaling (TransformerEngine's delayed_scaling.cu). If amax[i] is not 0, it is appended to the
/// history and the oldest entry is dropped. Then scale = fp8_max * 2^-margin / max(history), or / the latest
/// entry. If that amax is 0, infinity or NaN, the scale is unchanged. amax[i] is reset to 0. scale_inv[i]
/// becomes 1 / scale[i]; it is not written if it already has this value.
struct DelayedScaleArgs {
  float* amax = nullptr;  ///< [count], in and out
  /// [length, count], with rows `stride` apart. Row 0 is the oldest, row length - 1 the latest.
  float* history = nullptr;
  const std::uint8_t* formats = nullptr;
  float* scale = nullptr;
  float* scale_inv = nullptr;  ///< `inverse_stride` apart
  std::int64_t count = 0;
  std::int64_t inverse_stride = 1;
  std::int64_t stride = 0;  ///< row pitch of the history; at least count
  std::int64_t length = 0;
  int margin = 0;
  bool most_recent = false;
};
void delayed_scale(Stream& stream, const DelayedScaleArgs& args);

}  // namespace octet::ops
