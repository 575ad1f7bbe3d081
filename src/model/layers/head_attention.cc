#include "layers/head_attention.h"

#include <algorithm>

#include "octet/ops/attention.h"
#include "octet/ops/attention_sinks.h"

namespace octet::model {
namespace {

VectorHandle sinks_of(GroupBuilder& group, const Architecture& a) {
  if (!a.attention_sinks) return {};
  return group.vector("sinks", {{"self_attn.sinks", a.heads.q_heads, each_head(1)}}, InitRule::normal, 0,
                      a.initializer_range);
}

}  // namespace

HeadAttention::HeadAttention(GroupBuilder& group, const Architecture& a, std::int64_t layer)
    : heads_(heads_of_share(a, layer)),
      layer_(layer),
      window_(a.block(layer).window),
      scale_(static_cast<float>(a.attention_scale)),
      soft_cap_(static_cast<float>(a.attention_soft_cap)),
      sinks_(sinks_of(group, a)) {}

void HeadAttention::reserve(BlockBuffers& buffers, const Common& common) {
  const bool trains = common.options.training;
  if (!trains && !sinks_) return;
  lse_ = buffers.floats("activations/attention", heads_.q_heads, trains ? Kept::activations : Kept::never);
}

std::size_t HeadAttention::workspace(const Device& device, const Common& common) const {
  const TransformerOptions& o = common.options;
  // A core without backward may decode. Its caches have up to as many positions as its rotary tables.
  const std::int64_t capacity = o.max_positions == 0 ? o.max_length : o.max_positions;
  const bool order = o.fixed_order;
  return std::max(
      {o.training ? 0 : ops::cached_attention_workspace(device, heads_, o.max_tokens, capacity, order),
       ops::attention_workspace(device, heads_, common.dtype, o.max_tokens, o.max_length, order),
       o.training && sinks_ ? ops::attention_sinks_workspace(device, heads_, o.max_tokens) : 0});
}

// The causal mask removes half of the scores. Forward has two GEMMs, and backward has five.
std::vector<Operation> HeadAttention::operations(std::int64_t tokens, std::int64_t length, bool back) const {
  const auto t = static_cast<double>(tokens), wide = static_cast<double>(heads_.qkv_width());
  const auto out = static_cast<double>(heads_.q_heads * heads_.head_dim);
  const double flops = 2 * t * static_cast<double>(std::min(length, tokens)) * out;
  const double of_sinks = sinks_ ? 2 * out : 0;  // they read outputs, and change them or read gradients
  std::vector<Operation> all = {{.kind = OperationKind::attention,
                                 .flops = flops,
                                 .values = t * (wide + out + of_sinks),
                                 .again = {0, 0, 0, 1}}};
  if (back) {
    all.push_back({.kind = OperationKind::attention,
                   .backward = true,
                   .flops = 2.5 * flops,
                   .values = t * (2 * wide + 2 * out + of_sinks)});
  }
  return all;
}

void HeadAttention::forward(const Call& call, const ops::Matrix& qkv, const ops::Matrix& out) const {
  const AttentionInput& past = call.attention;
  if (past.cache != nullptr) {
    ops::cached_attention(call.stream, {.qkv = qkv,
                                        .heads = heads_,
                                        .slots = past.slots,
                                        .positions = past.positions,
                                        .k_cache = past.cache->keys(layer_),
                                        .v_cache = past.cache->values(layer_),
                                        .k_scale_inv = past.cache->key_scales(layer_),
                                        .v_scale_inv = past.cache->value_scales(layer_),
                                        .pages = past.cache->table(layer_),
                                        .capacity = past.cache->capacity(),
                                        .scale = scale_,
                                        .soft_cap = soft_cap_,
                                        .window = window_,
                                        .out = out,
                                        .lse = sinks_ ? lse_ : nullptr,
                                        .alone = past.alone,
                                        .fixed_order = call.common.options.fixed_order,
                                        .workspace = call.common.scratch.workspace});
    return add_sinks(call, out);
  }
  ops::attention(call.stream, {.qkv = qkv,
                               .heads = heads_,
                               .documents = past.documents,
                               .scale = scale_,
                               .soft_cap = soft_cap_,
                               .window = window_,
                               .out = out,
                               .lse = call.pass.keep || sinks_ ? lse_ : nullptr,
                               .fixed_order = call.common.options.fixed_order,
                               .workspace = call.common.scratch.workspace});
  add_sinks(call, out);
}

void HeadAttention::add_sinks(const Call& call, const ops::Matrix& out) const {
  if (!sinks_) return;
  ops::attention_sinks(call.stream,
                       {.sinks = sinks_.in(call.parameters), .heads = heads_, .out = out, .lse = lse_});
}

void HeadAttention::backward(const Call& call, const ops::Matrix& qkv, const ops::Matrix& out,
                             const ops::Matrix& d_out, const ops::Matrix& d_qkv) const {
  if (float* const d_sinks = sinks_.in(*call.gradients)) {
    ops::attention_sinks_backward(call.stream, {.sinks = sinks_.in(call.parameters),
                                                .heads = heads_,
                                                .out = out,
                                                .lse = lse_,
                                                .d_out = d_out,
                                                .d_sinks = d_sinks,
                                                .workspace = call.common.scratch.workspace});
  }
  ops::attention_backward(call.stream, {.qkv = qkv,
                                        .out = out,
                                        .d_out = d_out,
                                        .lse = lse_,
                                        .heads = heads_,
                                        .documents = call.attention.documents,
                                        .scale = scale_,
                                        .soft_cap = soft_cap_,
                                        .window = window_,
                                        .d_qkv = d_qkv,
                                        .workspace = call.common.scratch.workspace});
}

}  // namespace octet::model
