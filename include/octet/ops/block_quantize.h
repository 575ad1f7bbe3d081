#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Makes the E4M3 copies of a matrix whose scales belong to blocks. The scale of a block is the smallest
/// power of two, but not below 2^-100, under which its values fit E4M3 (TransformerEngine's
/// Float8BlockScaling with its default scales): values times 2^-e are rounded once, and what they stand for
/// is exact in bf16. A block of zeros, or with an infinity or a NaN, has the scale 1. Scaled by rows, the two
/// copies come from x each with its own scales; scaled by squares, both have the same values; of whole rows
/// there is the row copy alone.
struct BlockQuantizeArgs {
  ConstMatrix x;  ///< [rows, cols] T
  Scaling scaling = Scaling::rows;
  std::uint8_t* row = nullptr;            ///< [rows, cols], dense; null: not wanted
  float* scale_inv = nullptr;             ///< of `row`: scale_count(scaling, rows, cols)
  std::uint8_t* transposed = nullptr;     ///< [cols, rows], dense; null: not wanted; not of whole rows
  float* transposed_scale_inv = nullptr;  ///< of `transposed`: scale_count(scaling, cols, rows)
  Fp8Seen* seen =
      nullptr;  ///< device: what the cast into `row` meets is added; not without that copy, nor of whole rows
};
void block_quantize(Stream& stream, const BlockQuantizeArgs& args);

/// What values are multiplied by in a block whose largest magnitude is `amax`.
float block_scale(float amax);

}  // namespace octet::ops
