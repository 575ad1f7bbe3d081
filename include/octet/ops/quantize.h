#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// *amax = max(*amax, max |x|); NaN in x makes it NaN. `skip` (device; null: never): nothing happens where it
/// holds something else than 0, as in a step that changes nothing.
void amax(Stream& stream, ConstMatrix x, float* amax, const std::int32_t* skip = nullptr);

/// Writes the FP8 copies of x (f32 or bf16) that `into` asks for, and raises its amax.
void quantize(Stream& stream, ConstMatrix x, const QuantizeInto& into);

/// to[c, r] = from[r, c], of bytes: the second layout of an FP8 matrix that came without it.
struct TransposeArgs {
  const std::uint8_t* from = nullptr;  ///< [rows, cols], dense
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint8_t* to = nullptr;  ///< [cols, rows], dense
};
void transpose(Stream& stream, const TransposeArgs& args);

/// scale[i] = fp8_max(format[i]) / amax[i], scale_inv[i] = 1 / scale[i], for current scaling: an amax of
/// zero, infinity or NaN gives scale 1, an infinite quotient FLT_MAX (TransformerEngine's recipe_common).
struct CurrentScaleArgs {
  const float* amax = nullptr;            ///< [count]
  const std::uint8_t* formats = nullptr;  ///< [count] DType values, device
  float* scale = nullptr;                 ///< [count]
  float* scale_inv = nullptr;             ///< [count], `inverse_stride` apart
  std::int64_t count = 0;
  std::int64_t inverse_stride = 1;
};
void current_scale(Stream& stream, const CurrentScaleArgs& args);

/// Delayed scaling (TransformerEngine's delayed_scaling.cu): where amax[i] is not 0, the history rolls and
/// takes it in; scale = fp8_max * 2^-margin / max(history) (or / the latest); an amax of 0 or infinity or NaN
/// leaves the scale as it was. amax[i] is reset to 0. scale_inv[i] becomes 1 / scale[i], and is not written
/// where it is that already.
struct DelayedScaleArgs {
  float* amax = nullptr;  ///< [count], in and out
  /// [length, count], rows `stride` apart: row 0 the oldest, row length - 1 the latest.
  float* history = nullptr;
  const std::uint8_t* formats = nullptr;
  float* scale = nullptr;
  float* scale_inv = nullptr;  ///< `inverse_stride` apart
  std::int64_t count = 0;
  std::int64_t inverse_stride = 1;
  std::int64_t stride = 0;  ///< of the history; at least count
  std::int64_t length = 0;
  int margin = 0;
  bool most_recent = false;
};
void delayed_scale(Stream& stream, const DelayedScaleArgs& args);

}  // namespace octet::ops
