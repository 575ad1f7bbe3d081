#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// The largest head dimension that normed_rope supports.
inline constexpr std::int64_t kMaxNormedHeadDim = 4096;

/// Norm of queries and keys, then rotary embedding, in one pass. Works in place on the query and key heads of
/// a fused [tokens, qkv_width] matrix; values are unchanged. Each head x becomes R(x * rstd * w) with rstd =
/// 1 / sqrt(mean(x²) + eps) over the dimensions of the head (Henry et al. 2020, arXiv:2010.04245, with the
/// norm of rms_norm.h). R is the rotation of rope.h. All query heads share one weight, and all key heads
/// share another. The result is rounded to T once, after the rotation.
struct NormedRopeArgs {
  Matrix qkv;                       ///< [tokens, heads.qkv_width()] T, in and out
  Heads heads;                      ///< head_dim even, at most kMaxNormedHeadDim
  const float* q_weight = nullptr;  ///< [head_dim] f32
  const float* k_weight = nullptr;  ///< [head_dim] f32
  float eps = 1e-6f;
  bool one_plus_weight = false;             ///< multiply by 1 + w, as in Gemma
  const std::int32_t* positions = nullptr;  ///< [tokens], each below the tables' length
  const float* cosine = nullptr;            ///< tables of rope_table
  const float* sine = nullptr;
  Matrix raw;  ///< [tokens, (q_heads + kv_heads) * head_dim] T: the input heads; null data: not kept
  float* rstd = nullptr;     ///< [tokens, q_heads + kv_heads] f32; null: not kept
  std::int64_t rotated = 0;  ///< as RopeArgs::rotated
};
void normed_rope(Stream& stream, const NormedRopeArgs& args);

/// Replaces the gradient of the output of normed_rope in d_qkv by the gradient of its input. Adds to the
/// gradients of the weights, with tokens summed in a fixed order.
struct NormedRopeBackwardArgs {
  Matrix d_qkv;                 ///< [tokens, heads.qkv_width()] T, in and out
  ConstMatrix raw;              ///< from forward
  const float* rstd = nullptr;  ///< from forward
  Heads heads;
  const float* q_weight = nullptr;
  const float* k_weight = nullptr;
  bool one_plus_weight = false;
  const std::int32_t* positions = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  float* d_q_weight = nullptr;  ///< [head_dim] f32, added to; null: not wanted
  float* d_k_weight = nullptr;
  QuantizeInto quantize;     ///< optional FP8 copy of the whole d_qkv
  Workspace workspace;       ///< at least normed_rope_backward_workspace bytes
  std::int64_t rotated = 0;  ///< as RopeArgs::rotated
};
void normed_rope_backward(Stream& stream, const NormedRopeBackwardArgs& args);
std::size_t normed_rope_backward_workspace(const Device& device, std::int64_t tokens, const Heads& heads);

}  // namespace octet::ops
