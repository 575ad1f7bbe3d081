#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Writes the E4M3 copies of a matrix with block scales. The scale of a block is the smallest power of two,
/// but at least 2^-100, under which its values fit E4M3 (TransformerEngine's Float8BlockScaling with its
/// default scales). Values times the inverse scale are rounded once, and the decoded values are exact in
/// bf16. A block of zeros, or with an infinity or a NaN, has the scale 1.
///
/// Scaled by rows, each of the two copies is computed from x with its own scales. Scaled by squares, both
/// have the same values. With scales of whole rows, only the row copy exists.
struct BlockQuantizeArgs {
  ConstMatrix x;  ///< [rows, cols] T
  Scaling scaling = Scaling::rows;
  std::uint8_t* row = nullptr;            ///< [rows, cols], dense; null: not wanted
  float* scale_inv = nullptr;             ///< scales of `row`: scale_count(scaling, rows, cols)
  std::uint8_t* transposed = nullptr;     ///< [cols, rows], dense; null: not wanted; null for whole_rows
  float* transposed_scale_inv = nullptr;  ///< scales of `transposed`: scale_count(scaling, cols, rows)
  Fp8Seen* seen = nullptr;  ///< device: statistics of the cast into `row` are added; only with `row`, and not
                            ///< for whole_rows
};
void block_quantize(Stream& stream, const BlockQuantizeArgs& args);

/// Returns the factor that encodes values of a block with largest magnitude `amax`.
float block_scale(float amax);

}  // namespace octet::ops
