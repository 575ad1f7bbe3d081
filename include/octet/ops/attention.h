#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Causal attention with grouped KV heads over the documents of a flat micro-batch. Documents do not attend
/// to each other. The score of (i, j) is scale * q_i·k_j, then soft_cap * tanh(score / soft_cap) if soft_cap
/// > 0. Token i sees token j if 0 <= i - j < window (window 0: no limit). The softmax is in fp32, and the
/// [tokens, tokens] matrix is never stored (Dao et al. 2022, arXiv:2205.14135).
struct AttentionArgs {
  ConstMatrix qkv;  ///< [tokens, heads.qkv_width()] T: queries, then keys, then values
  Heads heads;
  Documents documents;
  float scale = 1.0f;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  Matrix out;            ///< [tokens, q_heads * head_dim] T
  float* lse = nullptr;  ///< [q_heads, tokens] f32: log of the sum of exponentials; null: not wanted
  /// Each token has the same bits as from cached_attention with `fixed_order`. Its keys are summed in tiles
  /// that are counted from the start of its document, at any position of the document in the micro-batch.
  bool fixed_order = false;
  Workspace workspace;  ///< at least attention_workspace bytes
};
void attention(Stream& stream, const AttentionArgs& args);

struct AttentionBackwardArgs {
  ConstMatrix qkv;
  ConstMatrix out;    ///< output of attention()
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

/// Returns the bytes of scratch for forward or backward, whichever needs more, for at most `tokens` tokens in
/// total. `fixed_order` is the value of AttentionArgs::fixed_order.
std::size_t attention_workspace(const Device& device, const Heads& heads, DType dtype, std::int64_t tokens,
                                std::int64_t max_length, bool fixed_order = false);

/// Page table of a KV cache. Position `position` of slot `slot` is stored in page p = table[slot * pitch +
/// position / tokens], in cache row p * tokens + position % tokens. Table entries of pages that no token of a
/// call sees are not read.
struct CachePages {
  const std::int32_t* table =
      nullptr;              ///< null: no pages, row (slot, position) is slot * capacity + position
  std::int64_t pitch = 0;   ///< table entries between the starts of two slots
  std::int64_t tokens = 0;  ///< tokens of a page, a power of two; GPUs read fastest with 64 or more
};

/// Attention for decoding: new tokens are appended to a KV cache and attend to its contents. Cache element
/// (row, head, d) is cache[(row * kv_heads + head) * head_dim + d], with the row from CachePages. The output
/// bits do not depend on the pages. In E4M3, each key and each value of a KV head has its own scale. The
/// scale is the smallest power of two under which the values fit (the rule of block_quantize), so decoded
/// values are exact in bf16.
struct CachedAttentionArgs {
  ConstMatrix qkv;  ///< [tokens, heads.qkv_width()] T, already rotated
  Heads heads;
  const std::int32_t* slots = nullptr;      ///< [tokens] the sequence of each token
  const std::int32_t* positions = nullptr;  ///< [tokens] position in the sequence, below capacity; tokens of
                                            ///< one sequence are in order and without gaps
  void* k_cache = nullptr;                  ///< [rows, kv_heads, head_dim] T or E4M3, in and out
  void* v_cache = nullptr;
  float* k_scale_inv = nullptr;  ///< [rows, kv_heads] factors of E4M3 codes. Null: the cache holds T
  float* v_scale_inv = nullptr;
  CachePages pages;
  std::int64_t capacity = 0;  ///< maximum number of tokens of a sequence
  float scale = 1.0f;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  Matrix out;            ///< [tokens, q_heads * head_dim] T
  float* lse = nullptr;  ///< [q_heads, tokens] f32: as of attention(); null: not wanted
  /// Number of leading tokens that are the only token of their sequence in this call, as in decoding. An
  /// exact duplicate of another of these tokens also counts. A GPU then splits long caches into pieces that
  /// it reads in parallel. Only the last bits of the output differ.
  std::int64_t alone = 0;
  /// Each token has the same bits as from attention() with `fixed_order` on its sequence. The other tokens of
  /// the call and the split of the sequence into calls have no effect. Not for a cache in E4M3, because its
  /// keys are rounded.
  bool fixed_order = false;
  /// cached_attention_workspace bytes. Without `fixed_order` it may be empty; then caches are not split.
  Workspace workspace;
};
void cached_attention(Stream& stream, const CachedAttentionArgs& args);

/// Returns the bytes of scratch for cached_attention with at most `tokens` tokens per call.
std::size_t cached_attention_workspace(const Device& device, const Heads& heads, std::int64_t tokens,
                                       std::int64_t capacity, bool fixed_order = false);

}  // namespace octet::ops
