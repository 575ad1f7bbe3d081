#pragma once

#include <cstddef>

#include "octet/ops/types.h"

namespace octet::ops {

/// Adds a sink to the softmax of each head: one more score, without a value (gpt-oss, arXiv:2508.10925).
/// Changes results of attention() or cached_attention() without sinks in place:
///   out[t, h] *= sigmoid(lse[h, t] - sinks[h])
///   lse[h, t] = ln(exp(lse[h, t]) + exp(sinks[h]))
/// Factors and logarithms are computed in double and rounded once. attention_backward() with these results
/// computes the gradients of queries, keys and values.
struct AttentionSinksArgs {
  const float* sinks = nullptr;  ///< [q_heads]
  Heads heads;
  Matrix out;            ///< [tokens, q_heads * head_dim] T
  float* lse = nullptr;  ///< [q_heads, tokens]
};
void attention_sinks(Stream& stream, const AttentionSinksArgs& args);

/// d_sinks[h] -= Σ_t exp(sinks[h] - lse[h, t]) * (out[t, h] · d_out[t, h]). The order of the sum depends only
/// on the number of tokens.
struct AttentionSinksBackwardArgs {
  const float* sinks = nullptr;
  Heads heads;
  ConstMatrix out;             ///< result of attention_sinks()
  const float* lse = nullptr;  ///< result of attention_sinks()
  ConstMatrix d_out;           ///< [tokens, q_heads * head_dim] T
  float* d_sinks = nullptr;    ///< [q_heads]
  Workspace workspace;         ///< at least attention_sinks_workspace() bytes
};
void attention_sinks_backward(Stream& stream, const AttentionSinksBackwardArgs& args);

/// Returns the bytes of scratch for attention_sinks_backward() with at most `tokens` tokens.
std::size_t attention_sinks_workspace(const Device& device, const Heads& heads, std::int64_t tokens);

}  // namespace octet::ops
