#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Largest key_dim and value_dim.
inline constexpr std::int64_t kMostDeltaDim = 256;

/// Heads of a gated delta rule: value head h reads key head h / (value_heads / key_heads). key_dim and
/// value_dim are multiples of 8, at most kMostDeltaDim.
struct DeltaHeads {
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;  ///< a multiple of key_heads
  std::int64_t key_dim = 0;      ///< of a head
  std::int64_t value_dim = 0;    ///< of a head
  constexpr std::int64_t keys() const { return key_heads * key_dim; }
  constexpr std::int64_t values() const { return value_heads * value_dim; }
  constexpr std::int64_t qkv_width() const { return 2 * keys() + values(); }
  bool operator==(const DeltaHeads&) const = default;
};

/// Tokens of a chunk. Chunks are counted from the start of their document.
inline constexpr std::int64_t kDeltaChunk = 64;
/// Added to the square of the norm of a query or key.
inline constexpr float kDeltaNormEps = 1e-6f;

/// Returns the largest number of states that forward keeps for backward, for any documents of `tokens`
/// tokens. These are the states before all chunks except the first chunk of each document. State c - 1 of a
/// document, before chunk c, is number cu_seqlens[document] / kDeltaChunk + c - 1. Other numbers are not
/// written.
constexpr std::int64_t delta_states(std::int64_t tokens) {
  return tokens / kDeltaChunk;
}

/// The gated delta rule (Yang et al. 2025, arXiv:2412.06464) over the documents of a flat micro-batch. Each
/// document and value head has a state S [key_dim, value_dim], which starts as zero:
///   q' = q / sqrt(|q|² + kDeltaNormEps) / sqrt(key_dim);  k' = k / sqrt(|k|² + kDeltaNormEps)
///   S = exp(g_t) S;  S = S + k'_t (beta_t (v_t - Sᵀ k'_t))ᵀ;  o_t = Sᵀ q'_t
/// Tokens are processed in chunks (the WY form of Yang et al. 2024, arXiv:2406.06484). The state and all sums
/// are in fp32. On a GPU in bf16, GEMMs within a chunk read operands that are rounded to bf16. The bits of a
/// document do not depend on its place in the micro-batch. Tokens outside of all documents give zeros.
struct DeltaRuleArgs {
  ConstMatrix qkv;                   ///< [tokens, heads.qkv_width()] T: queries, keys, values, not normalised
  const float* log_decay = nullptr;  ///< [tokens, value_heads] f32: g, at most 0
  const float* beta = nullptr;       ///< [tokens, value_heads] f32
  DeltaHeads heads;
  Documents documents;
  Matrix out;  ///< [tokens, heads.values()] T
  /// [delta_states(tokens), value_heads, key_dim, value_dim] T: states for backward; null: not wanted.
  void* states = nullptr;
  Workspace workspace;  ///< at least delta_rule_workspace bytes
};
void delta_rule(Stream& stream, const DeltaRuleArgs& args);

/// Gradients of delta_rule(). Everything within a chunk is recomputed from qkv and the states.
struct DeltaRuleBackwardArgs {
  ConstMatrix qkv;
  const float* log_decay = nullptr;
  const float* beta = nullptr;
  const void* states = nullptr;  ///< written by delta_rule(); null is allowed if delta_states(tokens) is 0
  ConstMatrix d_out;             ///< [tokens, heads.values()] T
  DeltaHeads heads;
  Documents documents;
  Matrix d_qkv;                  ///< [tokens, heads.qkv_width()] T, overwritten
  float* d_log_decay = nullptr;  ///< [tokens, value_heads], overwritten
  float* d_beta = nullptr;       ///< [tokens, value_heads], overwritten
  Workspace workspace;           ///< at least delta_rule_workspace bytes
};
void delta_rule_backward(Stream& stream, const DeltaRuleBackwardArgs& args);

/// Returns the bytes of scratch for forward or backward, whichever needs more, for any documents of at most
/// `tokens` tokens in total.
std::size_t delta_rule_workspace(const Device& device, const DeltaHeads& heads, DType dtype,
                                 std::int64_t tokens);

/// The delta rule for decoding: the state of a sequence is kept between calls. Tokens of a sequence are in
/// order, without gaps, and adjacent in the call; they may be one token or a whole prompt. A token at
/// position 0 starts with a state of zero. Each token is one step of the recurrence. So its bits depend
/// neither on other sequences of the call nor on the split of a sequence into calls. They may differ from
/// delta_rule() in the last places.
///
/// Padding: if the sequence of token 0 has no other token, later tokens may be copies of token 0, with its
/// slot and position. A copy gets the output of token 0, and the state changes once.
struct CachedDeltaRuleArgs {
  ConstMatrix qkv;  ///< as in DeltaRuleArgs
  const float* log_decay = nullptr;
  const float* beta = nullptr;
  DeltaHeads heads;
  const std::int32_t* slots = nullptr;      ///< [tokens] the sequence of each token
  const std::int32_t* positions = nullptr;  ///< [tokens] position in the sequence
  float* states = nullptr;                  ///< [slots, value_heads, key_dim, value_dim] f32, in and out
  Matrix out;                               ///< [tokens, heads.values()] T
};
void cached_delta_rule(Stream& stream, const CachedDeltaRuleArgs& args);

}  // namespace octet::ops
