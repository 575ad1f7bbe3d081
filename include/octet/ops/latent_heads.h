#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Heads of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). A head of queries and keys has
/// dimensions that do not rotate and dimensions that do. All heads share the rotated part of their keys.
/// A value may be narrower than a key, but not wider.
struct LatentHeads {
  std::int64_t heads = 0;
  std::int64_t nope_dim = 0;   ///< dimensions that do not rotate
  std::int64_t rope_dim = 0;   ///< dimensions that rotate
  std::int64_t value_dim = 0;  ///< at most key_dim()
  constexpr std::int64_t key_dim() const { return nope_dim + rope_dim; }
  constexpr std::int64_t keys() const { return heads * key_dim(); }
  constexpr std::int64_t values() const { return heads * value_dim; }
  /// Width of the expanded latents: of each head its key without the rotated part, then its value.
  constexpr std::int64_t expanded() const { return heads * (nope_dim + value_dim); }
  /// The heads of ops::attention(). Zeros after each value make it as wide as a key.
  constexpr Heads padded() const { return {.q_heads = heads, .kv_heads = heads, .head_dim = key_dim()}; }
  bool operator==(const LatentHeads&) const = default;
};

/// Copies queries, keys and values into the layout of ops::attention() with the heads padded(). In a head of
/// `qkv`, the dimensions that rotate come first, as in ops::rope(). Scores do not change, because queries and
/// keys have the same order.
struct JoinLatentHeadsArgs {
  ConstMatrix queries;   ///< [tokens, heads.keys()] T: in each head, the dimensions that rotate come last
  ConstMatrix expanded;  ///< [tokens, heads.expanded()] T
  ConstMatrix rope_key;  ///< [tokens, heads.rope_dim] T
  LatentHeads heads;
  Matrix qkv;  ///< [tokens, heads.padded().qkv_width()] T
};
void join_latent_heads(Stream& stream, const JoinLatentHeadsArgs& args);

/// Backward of join_latent_heads(). The gradient of `rope_key` is the sum over heads, in their order, in fp32
/// and rounded once. Gradients of padding are not read.
struct SplitLatentHeadsArgs {
  ConstMatrix d_qkv;  ///< [tokens, heads.padded().qkv_width()] T
  LatentHeads heads;
  Matrix d_queries;   ///< [tokens, heads.keys()] T
  Matrix d_expanded;  ///< [tokens, heads.expanded()] T
  Matrix d_rope_key;  ///< [tokens, heads.rope_dim] T
};
void split_latent_heads(Stream& stream, const SplitLatentHeadsArgs& args);

/// Copies the values out of the output of ops::attention(), without the padding.
struct CutHeadValuesArgs {
  ConstMatrix padded;  ///< [tokens, heads.keys()] T
  LatentHeads heads;
  Matrix out;             ///< [tokens, heads.values()] T; null data: only the FP8 copy
  QuantizeInto quantize;  ///< optional FP8 copy, with one scale or with scales of rows
};
void cut_head_values(Stream& stream, const CutHeadValuesArgs& args);

/// Backward of cut_head_values(): the gradient of padding is zero.
struct PadHeadValuesArgs {
  ConstMatrix d_out;  ///< [tokens, heads.values()] T
  LatentHeads heads;
  Matrix d_padded;  ///< [tokens, heads.keys()] T
};
void pad_head_values(Stream& stream, const PadHeadValuesArgs& args);

}  // namespace octet::ops
