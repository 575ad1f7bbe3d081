#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Fills the cosine and sine tables [positions, half_dim] f32. angle = position * inv_freq[i] is computed
/// in fp32, like in Hugging Face. Both tables are multiplied by `factor` (YaRN's attention factor; 1
/// otherwise).
struct RopeTableArgs {
  const float* inv_freq = nullptr;  ///< [half_dim] f32, device
  float factor = 1.0f;
  std::int64_t positions = 0;
  std::int64_t half_dim = 0;  ///< half of the dimensions that rotate
  float* cosine = nullptr;
  float* sine = nullptr;
};
void rope_table(Stream& stream, const RopeTableArgs& args);

/// Rotary embedding (Su et al. 2021, arXiv:2104.09864) in the rotate-half layout, in place on the query and
/// key heads of a fused [tokens, qkv_width] matrix. (a, b) -> (a cos - b sin, b cos + a sin) with a = x[i], b
/// = x[i + rotated / 2]. Dimensions from `rotated` on stay as they are. `inverse` rotates back, which is the
/// backward pass.
struct RopeArgs {
  Matrix qkv;  ///< [tokens, heads.qkv_width()] T
  Heads heads;
  const std::int32_t* positions = nullptr;  ///< [tokens], each below the table's length
  const float* cosine = nullptr;
  const float* sine = nullptr;
  bool inverse = false;
  QuantizeInto quantize;    ///< optional FP8 copy of the whole matrix (backward)
  bool keep_values = true;  ///< false: only the FP8 copy is wanted; qkv is undefined afterwards
  /// The first dimensions of each head that rotate, an even number; 0: all. Tables have half as many columns.
  std::int64_t rotated = 0;
  bool interleaved = false;  ///< a = x[2 i] and b = x[2 i + 1] instead, as in GPT-J
};
void rope(Stream& stream, const RopeArgs& args);

}  // namespace octet::ops
