#pragma once

#include "octet/ops/delta_rule.h"

namespace octet::ops {

/// Taps of the convolution.
inline constexpr std::int64_t kDeltaTaps = 4;

/// Columns of the projected input of a delta rule. First, `groups` runs of [queries | keys | values | gates],
/// each with 1/groups of the heads. Then, `groups` runs of [b | a], one column per value head.
struct DeltaColumns {
  DeltaHeads heads;
  std::int64_t groups = 1;  ///< divides key_heads
  constexpr std::int64_t width() const { return heads.qkv_width() + heads.values() + 2 * heads.value_heads; }

  // First columns of the parts of a head.
  constexpr std::int64_t query(std::int64_t key_head) const {
    return run_of(key_head, key_heads()) + key_head % key_heads() * heads.key_dim;
  }
  constexpr std::int64_t key(std::int64_t key_head) const {
    return query(key_head) + key_heads() * heads.key_dim;
  }
  constexpr std::int64_t value(std::int64_t value_head) const {
    return run_of(value_head, value_heads()) + 2 * key_heads() * heads.key_dim +
           value_head % value_heads() * heads.value_dim;
  }
  constexpr std::int64_t gate(std::int64_t value_head) const {
    return value(value_head) + value_heads() * heads.value_dim;
  }
  constexpr std::int64_t b(std::int64_t value_head) const {
    return heads.qkv_width() + heads.values() + value_head / value_heads() * 2 * value_heads() +
           value_head % value_heads();
  }
  constexpr std::int64_t a(std::int64_t value_head) const { return b(value_head) + value_heads(); }

  // Heads of a run.
  constexpr std::int64_t key_heads() const { return heads.key_heads / groups; }
  constexpr std::int64_t value_heads() const { return heads.value_heads / groups; }

 private:
  /// First column of the run that has a head.
  constexpr std::int64_t run_of(std::int64_t head, std::int64_t heads_of_run) const {
    return head / heads_of_run * ((heads.qkv_width() + heads.values()) / groups);
  }
};

/// The inputs of delta_rule() from a projection. Each channel of queries, keys and values passes a causal
/// convolution over the last kDeltaTaps tokens of its document, then SiLU. Gates give beta and the decay:
///   y_t = silu(Σ_j taps[c, j] x_{t - (kDeltaTaps - 1) + j});  beta = sigmoid(b);
///   log_decay = -exp(a_log) * softplus(a + dt_bias)
/// The convolution is a chain of fused multiply-adds in fp32, from the oldest token to the newest, which
/// starts at zero. Tokens before the start of a document are not part of the chain. beta and log_decay are
/// computed in double and rounded once. Tokens outside of all documents give zeros.
struct DeltaInputsArgs {
  ConstMatrix projected;  ///< [tokens, columns.width()] T
  DeltaColumns columns;
  Documents documents;
  const float* taps = nullptr;     ///< [heads.qkv_width(), kDeltaTaps] f32, channels of queries, keys, values
  const float* a_log = nullptr;    ///< [value_heads] f32
  const float* dt_bias = nullptr;  ///< [value_heads] f32
  Matrix qkv;                      ///< [tokens, heads.qkv_width()] T: queries, keys, values
  float* log_decay = nullptr;      ///< [tokens, value_heads]
  float* beta = nullptr;           ///< [tokens, value_heads]
};
void delta_inputs(Stream& stream, const DeltaInputsArgs& args);

/// Gradients of delta_inputs(). The columns of gates in d_projected are not written; gated_norm_backward()
/// writes them. Sums over tokens run in an order that depends only on the shapes. Tokens outside of all
/// documents give zeros.
struct DeltaInputsBackwardArgs {
  ConstMatrix projected;
  DeltaColumns columns;
  Documents documents;
  const float* taps = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  ConstMatrix d_qkv;                   ///< [tokens, heads.qkv_width()] T
  const float* d_log_decay = nullptr;  ///< [tokens, value_heads]
  const float* d_beta = nullptr;       ///< [tokens, value_heads]
  Matrix d_projected;                  ///< [tokens, columns.width()] T: written, except the columns of gates
  float* d_taps = nullptr;             ///< added to; null: not wanted
  float* d_a_log = nullptr;            ///< added to; null: not wanted
  float* d_dt_bias = nullptr;          ///< added to; null: not wanted
  Workspace workspace;                 ///< at least delta_inputs_workspace bytes
};
void delta_inputs_backward(Stream& stream, const DeltaInputsBackwardArgs& args);
/// Returns the bytes of scratch for delta_inputs_backward() with at most `tokens` tokens.
std::size_t delta_inputs_workspace(const Device& device, const DeltaColumns& columns, std::int64_t tokens);

/// delta_inputs() for decoding, with the same bits. The last kDeltaTaps - 1 inputs of a sequence are kept
/// between calls. Tokens, and copies of token 0, are as in CachedDeltaRuleArgs.
struct CachedDeltaInputsArgs {
  ConstMatrix projected;
  DeltaColumns columns;
  const std::int32_t* slots = nullptr;      ///< [tokens] the sequence of each token
  const std::int32_t* positions = nullptr;  ///< [tokens] position in the sequence
  /// [slots, kDeltaTaps - 1, heads.qkv_width()] f32, in and out. The input of channel c at `position` is
  /// element (slot, position % (kDeltaTaps - 1), c).
  float* past = nullptr;
  const float* taps = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  Matrix qkv;                  ///< [tokens, heads.qkv_width()] T
  float* log_decay = nullptr;  ///< [tokens, value_heads]
  float* beta = nullptr;       ///< [tokens, value_heads]
};
void cached_delta_inputs(Stream& stream, const CachedDeltaInputsArgs& args);

}  // namespace octet::ops
