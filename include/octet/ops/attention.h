#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Causal attention with grouped KV heads over the documents of a flat micro-batch; no document sees another.
/// Score of (i, j) = scale * q_i·k_j, then soft_cap * tanh(score / soft_cap) when soft_cap > 0; token i sees
/// j when 0 <= i - j < window (window 0: no limit). Softmax in fp32, never as one [tokens, tokens] matrix
/// (Dao et al. 2022, arXiv:2205.14135).
struct AttentionArgs {
  ConstMatrix qkv;  ///< [tokens, heads.qkv_width()] T: queries, keys, values one behind the other
  Heads heads;
  Documents documents;
  float scale = 1.0f;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  Matrix out;            ///< [tokens, q_heads * head_dim] T
  float* lse = nullptr;  ///< [q_heads, tokens] f32: log of the sum of exponentials; null: not wanted
  /// A token has the bits that cached_attention in a fixed order gives it: its keys are summed in tiles that
  /// are counted from the start of its document, wherever that lies in the micro-batch.
  bool fixed_order = false;
  Workspace workspace;  ///< at least attention_workspace bytes
};
void attention(Stream& stream, const AttentionArgs& args);

struct AttentionBackwardArgs {
  ConstMatrix qkv;
  ConstMatrix out;    ///< of forward
  ConstMatrix d_out;  ///< [tokens, q_heads * head_dim] T
  const float* lse = nullptr;
  Heads heads;
  Documents documents;
  float scale = 1.0f;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  Matrix d_qkv;         ///< [tokens, heads.qkv_width()] T, overwritten
  Workspace workspace;  ///< at least attention_workspace bytes
};
void attention_backward(Stream& stream, const AttentionBackwardArgs& args);

/// Bytes of scratch for forward or backward, whichever is more, at most `tokens` tokens in all.
/// `fixed_order`: as forward is asked.
std::size_t attention_workspace(const Device& device, const Heads& heads, DType dtype, std::int64_t tokens,
                                std::int64_t max_length, bool fixed_order = false);

/// Where the tokens of a sequence lie in a KV cache: row (slot, position) of it is row position % tokens of
/// page table[slot * pitch + position / tokens], and page p begins with row p * tokens. Entries of pages that
/// no token of a call sees are not read.
struct CachePages {
  const std::int32_t* table =
      nullptr;              ///< null: no pages, row (slot, position) is slot * capacity + position
  std::int64_t pitch = 0;   ///< from the entries of a slot to those of the next
  std::int64_t tokens = 0;  ///< of a page, a power of two; from 64 on a GPU reads fastest
};

/// Attention of decoding: new tokens are appended to a KV cache and attend to what is in it.
/// Cache element (row, head, d): cache[(row * kv_heads + head) * head_dim + d], the row as CachePages says.
/// What comes out does not depend on the pages, to the last bit. In E4M3 each key and each value of a KV head
/// has a scale of its own, the smallest power of two under which it fits (block_quantize's rule): what is
/// read back is exact in bf16.
struct CachedAttentionArgs {
  ConstMatrix qkv;  ///< [tokens, heads.qkv_width()] T, rotated already
  Heads heads;
  const std::int32_t* slots = nullptr;      ///< [tokens] which sequence a token belongs to
  const std::int32_t* positions = nullptr;  ///< [tokens] its place in that sequence, below capacity; tokens
                                            ///< of one sequence come in order and leave no gap
  void* k_cache = nullptr;                  ///< [rows, kv_heads, head_dim] T or E4M3, in and out
  void* v_cache = nullptr;
  float* k_scale_inv = nullptr;  ///< [rows, kv_heads] of E4M3: by what codes count. Null: the cache holds T
  float* v_scale_inv = nullptr;
  CachePages pages;
  std::int64_t capacity = 0;  ///< most tokens of a sequence
  float scale = 1.0f;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  Matrix out;  ///< [tokens, q_heads * head_dim] T
  /// The first so many tokens are each the only one of their sequence in this call, as in decoding, or the
  /// same as another of these in every way: a GPU then reads long caches in pieces side by side. What comes
  /// out differs in its last bits alone.
  std::int64_t alone = 0;
  /// A token has the bits that attention in a fixed order gives it in its sequence, whatever stands beside it
  /// and however its sequence was cut. Not of a cache in E4M3, whose keys are others.
  bool fixed_order = false;
  /// cached_attention_workspace bytes, or, not in a fixed order, none: then no cache is read in pieces.
  Workspace workspace;
};
void cached_attention(Stream& stream, const CachedAttentionArgs& args);

/// Bytes of scratch for cached_attention with at most `tokens` tokens at once.
std::size_t cached_attention_workspace(const Device& device, const Heads& heads, std::int64_t tokens,
                                       std::int64_t capacity, bool fixed_order = false);

}  // namespace octet::ops
