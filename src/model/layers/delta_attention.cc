#include "layers/delta_attention.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/device/profile.h"
#include "octet/ops/delta_rule.h"
#include "octet/ops/gated_norm.h"

namespace octet::model {
namespace {

ops::DeltaColumns columns_of_delta(const Architecture& a) {
  return {.heads = a.delta.heads, .groups = a.delta.grouped ? a.delta.heads.key_heads : 1};
}

// The columns of b and a are part of the GEMM, also in FP8. A separate GEMM would read the input again for
// very few columns. Columns of b and a are rounded like the other columns, and the rounding of decays
// averages out over tokens.
LinearShape in_shape(const Architecture& a) {
  const ops::DeltaHeads& heads = a.delta.heads;
  const std::string front = "linear_attn.in_proj_";
  LinearShape shape{.name = "delta_in",
                    .title = "delta rule q, k, v, gates",
                    .inputs = a.hidden,
                    .init_std = a.initializer_range,
                    .reads_stream = !a.input_norms};
  if (a.delta.grouped) {
    shape.modules = {{front + "qkvz", heads.qkv_width() + heads.values()},
                     {front + "ba", 2 * heads.value_heads}};
    return shape;
  }
  shape.modules = {{front + "qkv", heads.qkv_width()},
                   {front + "z", heads.values()},
                   {front + "b", heads.value_heads},
                   {front + "a", heads.value_heads}};
  return shape;
}

LinearShape out_shape(const Architecture& a) {
  return {.name = "delta_out",
          .title = "delta rule output",
          .inputs = a.delta.heads.values(),
          .modules = {{"linear_attn.out_proj", a.hidden}},
          .init_std = a.initializer_range};
}

VectorHandle taps_of(GroupBuilder& group, const Architecture& a) {
  const std::int64_t channels = a.delta.heads.qkv_width();
  return group.vector("delta_taps",
                      {{.name = "linear_attn.conv1d.weight",
                        .rows = channels * ops::kDeltaTaps,
                        .shape = {channels, 1, ops::kDeltaTaps}}},
                      InitRule::normal, 0, a.initializer_range);
}

}  // namespace

DeltaAttention::DeltaAttention(GroupBuilder& group, const Architecture& a, std::int64_t layer)
    : columns_(columns_of_delta(a)),
      layer_(layer),
      eps_(static_cast<float>(a.norm_eps)),
      norm_(group, "input_norm", named_or(a.names.input_norm, "input_layernorm"), a),
      in_(group, in_shape(a)),
      taps_(taps_of(group, a)),
      a_log_(group.vector("delta_a_log", {{"linear_attn.A_log", a.delta.heads.value_heads}},
                          InitRule::log_uniform, 0, a.delta.least_decay)),
      dt_bias_(group.vector("delta_dt_bias", {{"linear_attn.dt_bias", a.delta.heads.value_heads}},
                            InitRule::ones)),
      head_norm_(
          group.vector("delta_norm", {{"linear_attn.norm.weight", a.delta.heads.value_dim}}, InitRule::ones)),
      output_(group, a, out_shape(a), "attention_output_norm",
              named_or(a.names.attention_output_norm, "post_attention_layernorm")) {
  check(!a.share.sums(), "a delta rule is not split among ranks");
  if (output_.norm()) norm_.set_other(*output_.norm());
}

void DeltaAttention::set_passes_on(bool passes_on) {
  norm_.set_passes_on(passes_on);
  in_.set_passes_on(norm_.runs_back());
  output_.set_passes_on(mixes_back() || head_norm_.trained());
}

void DeltaAttention::reserve(BlockBuffers& buffers, const Common& common) {
  const ops::DeltaHeads& heads = columns_.heads;
  norm_.reserve(buffers);
  in_.reserve(buffers, common);
  output_.reserve(buffers, common);
  projected_ = buffers.matrix("activations/delta rule", columns_.width(), Kept::qkv);
  qkv_ = buffers.matrix("activations/delta rule", heads.qkv_width(), Kept::qkv);
  log_decay_ = buffers.floats("activations/delta rule", heads.value_heads, Kept::qkv);
  beta_ = buffers.floats("activations/delta rule", heads.value_heads, Kept::qkv);
  mixed_ = buffers.matrix("activations/delta rule", heads.values(), Kept::activations);
  if (!common.options.training) return;
  const std::int64_t states = ops::delta_states(common.options.max_tokens);
  states_ = buffers
                .rows("activations/delta rule states", states * heads.value_heads * heads.key_dim,
                      heads.value_dim, Kept::activations)
                .data;
  d_projected_ = buffers.matrix("activations/gradients", columns_.width(), Kept::never);
  d_qkv_ = buffers.matrix("activations/gradients", heads.qkv_width(), Kept::never);
  d_log_decay_ = buffers.floats("activations/gradients", heads.value_heads, Kept::never);
  d_beta_ = buffers.floats("activations/gradients", heads.value_heads, Kept::never);
}

std::size_t DeltaAttention::workspace(const Device& device, const Common& common) const {
  const ops::DeltaHeads& heads = columns_.heads;
  const std::int64_t tokens = common.options.max_tokens;
  const bool trains = common.options.training;
  return std::max({ops::delta_rule_workspace(device, heads, common.dtype, tokens),
                   trains ? ops::delta_inputs_workspace(device, columns_, tokens) : 0,
                   trains ? ops::gated_norm_workspace(device, heads, tokens) : 0,
                   in_.workspace(device, common), output_.linear().workspace(device, common),
                   trains ? norm_.workspace(device, common) : 0});
}

// In a chunk, causal GEMMs compute about half of their results. Per token and head, these are keys with keys,
// queries with keys, the solution for keys and values, and the scores with values. Three GEMMs read or write
// the state. Backward has twice as many, and computes the forward results of a chunk again.
std::vector<Operation> DeltaAttention::operations(std::int64_t tokens, std::int64_t length) const {
  const ops::DeltaHeads& heads = columns_.heads;
  const int back = in_.runs_back() ? 1 : 0;
  std::vector<Operation> all = norm_.operations(tokens, {0, back, back + 1, 1});
  append(all, in_.operations(tokens, {0, 0, 1, 1}));
  const auto t = static_cast<double>(tokens), wide = static_cast<double>(heads.qkv_width());
  const auto values = static_cast<double>(heads.values()), key = static_cast<double>(heads.key_dim);
  const auto value = static_cast<double>(heads.value_dim);
  const auto chunk = static_cast<double>(std::min({length, tokens, ops::kDeltaChunk}));
  all.push_back(moves(OperationKind::activation, t * 2 * wide, {0, 0, 1, 1}));
  const double of_head = 6 * key * value + chunk * (3 * key + 2 * value);
  const double flops = t * static_cast<double>(heads.value_heads) * of_head;
  const double states = t / static_cast<double>(ops::kDeltaChunk) * values * key;
  all.push_back({.kind = OperationKind::attention,
                 .flops = flops,
                 .values = t * (wide + values) + states,
                 .again = {0, 0, 0, 1}});
  if (mixes_back()) {
    all.push_back({.kind = OperationKind::attention,
                   .backward = true,
                   .flops = 3 * flops,
                   .values = t * (2 * wide + values) + states});
    all.push_back(moves_back(OperationKind::activation, t * 3 * wide));
  }
  all.push_back(moves(OperationKind::norm, t * 3 * values, {0, 1, 1, 1}));
  if (mixes_back() || head_norm_.trained()) all.push_back(moves_back(OperationKind::norm, t * 5 * values));
  append(all, output_.operations(tokens, {0, 0, 0, 1}));
  return all;
}

void DeltaAttention::normalise(const Call& call, const NormInput& input, const ops::Matrix& stream) {
  norm_.forward(call, input, stream, in_.input());
}

void DeltaAttention::project(const Call& call, const NormInput& before, const ops::Matrix& stream) {
  call.settle();
  normalise(call, before, stream);
  in_.forward(call, top(projected_, call.tokens));
}

bool DeltaAttention::project_decode(const Call& call, const NormInput& before) const {
  if (before.delta.data != nullptr) return false;  // the kernel does not store a pending sum
  ops::DecodeGemmArgs args{.x = before.residual, .y = top(projected_, call.tokens)};
  if (!norm_.put_in_front(call, args) || !in_.takes_decode(call, args)) return false;
  in_.forward_decode(call, args);
  return true;
}

void DeltaAttention::make_inputs(const Call& call) const {
  ops::delta_inputs(call.stream, {.projected = top(projected_, call.tokens),
                                  .columns = columns_,
                                  .documents = call.attention.documents,
                                  .taps = taps_.in(call.parameters),
                                  .a_log = a_log_.in(call.parameters),
                                  .dt_bias = dt_bias_.in(call.parameters),
                                  .qkv = top(qkv_, call.tokens),
                                  .log_decay = log_decay_,
                                  .beta = beta_});
}

void DeltaAttention::mix(const Call& call) const {
  make_inputs(call);
  ops::delta_rule(call.stream, {.qkv = top(qkv_, call.tokens),
                                .log_decay = log_decay_,
                                .beta = beta_,
                                .heads = columns_.heads,
                                .documents = call.attention.documents,
                                .out = top(mixed_, call.tokens),
                                .states = call.pass.keep ? states_ : nullptr,
                                .workspace = call.common.scratch.workspace});
}

void DeltaAttention::mix_cached(const Call& call) const {
  const AttentionInput& past = call.attention;
  ops::cached_delta_inputs(call.stream, {.projected = top(projected_, call.tokens),
                                         .columns = columns_,
                                         .slots = past.slots,
                                         .positions = past.positions,
                                         .past = past.cache->delta_inputs(layer_),
                                         .taps = taps_.in(call.parameters),
                                         .a_log = a_log_.in(call.parameters),
                                         .dt_bias = dt_bias_.in(call.parameters),
                                         .qkv = top(qkv_, call.tokens),
                                         .log_decay = log_decay_,
                                         .beta = beta_});
  ops::cached_delta_rule(call.stream, {.qkv = top(qkv_, call.tokens),
                                       .log_decay = log_decay_,
                                       .beta = beta_,
                                       .heads = columns_.heads,
                                       .slots = past.slots,
                                       .positions = past.positions,
                                       .states = past.cache->delta_states(layer_),
                                       .out = top(mixed_, call.tokens)});
}

void DeltaAttention::norm_heads(const Call& call, const Wanted& out) const {
  ops::gated_norm(call.stream, {.o = top(mixed_, call.tokens),
                                .projected = top(projected_, call.tokens),
                                .columns = columns_,
                                .weight = head_norm_.in(call.parameters),
                                .eps = eps_,
                                .out = out.values,
                                .quantize = out.quantize});
}

void DeltaAttention::finish_heads(const Call& call) {
  LinearInput& heads = output_.linear().input();
  norm_heads(call, heads.wanted(call, WriteOrder::rows));
  heads.written(call, WriteOrder::rows);
}

void DeltaAttention::forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                             const ops::Matrix& after) {
  if (!project_decode(call, before)) project(call, before, stream);
  call.settle();
  call.attention.cache != nullptr ? mix_cached(call) : mix(call);
  const ops::Matrix heads = top(mixed_, call.tokens);
  if (output_.takes_decode(call, heads, stream, after)) {
    norm_heads(call, {.values = heads});
    return output_.forward_decode(call, heads, stream, after);
  }
  finish_heads(call);
  output_.forward(call, stream, after);
}

void DeltaAttention::mix_back(const Call& call, const ops::Matrix& d_mixed) const {
  ops::delta_rule_backward(call.stream, {.qkv = top(qkv_, call.tokens),
                                         .log_decay = log_decay_,
                                         .beta = beta_,
                                         .states = states_,
                                         .d_out = d_mixed,
                                         .heads = columns_.heads,
                                         .documents = call.attention.documents,
                                         .d_qkv = top(d_qkv_, call.tokens),
                                         .d_log_decay = d_log_decay_,
                                         .d_beta = d_beta_,
                                         .workspace = call.common.scratch.workspace});
  ops::delta_inputs_backward(call.stream, {.projected = top(projected_, call.tokens),
                                           .columns = columns_,
                                           .documents = call.attention.documents,
                                           .taps = taps_.in(call.parameters),
                                           .a_log = a_log_.in(call.parameters),
                                           .dt_bias = dt_bias_.in(call.parameters),
                                           .d_qkv = top(d_qkv_, call.tokens),
                                           .d_log_decay = d_log_decay_,
                                           .d_beta = d_beta_,
                                           .d_projected = top(d_projected_, call.tokens),
                                           .d_taps = taps_.in(*call.gradients),
                                           .d_a_log = a_log_.in(*call.gradients),
                                           .d_dt_bias = dt_bias_.in(*call.gradients),
                                           .workspace = call.common.scratch.workspace});
}

void DeltaAttention::backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) {
  const Common& common = call.common;
  if (common.remakes_inputs()) {
    const ProfileLabel label(call.stream, "recompute");
    if (common.remakes_qkv()) {
      const Call again = call.again(Readers::forward);
      project(again, {.residual = stream}, stream);
      if (mixes_back()) make_inputs(again);
    }
    finish_heads(call.again(Readers::backward));
  }
  const ops::Matrix d_heads = narrowed(common.scratch.wide, call.tokens, columns_.heads.values());
  output_.backward(call, d_heads);
  if (!mixes_back() && !head_norm_.trained()) return;
  ops::gated_norm_backward(call.stream, {.o = top(mixed_, call.tokens),
                                         .projected = top(projected_, call.tokens),
                                         .columns = columns_,
                                         .weight = head_norm_.in(call.parameters),
                                         .eps = eps_,
                                         .d_out = d_heads,
                                         .d_o = d_heads,
                                         .d_projected = top(d_projected_, call.tokens),
                                         .d_weight = head_norm_.in(*call.gradients),
                                         .workspace = common.scratch.workspace});
  if (!mixes_back()) return;
  mix_back(call, d_heads);
  if (!in_.runs_back()) return;
  const ops::Matrix d_projected = top(d_projected_, call.tokens);
  const auto d_operands = in_.gradient_values_written(call, d_projected);
  if (common.remakes_inputs()) {
    // The gradient of the heads has overwritten the first recomputation.
    const ProfileLabel label(call.stream, "recompute");
    normalise(call.again(Readers::backward), {.residual = stream}, stream);
  }
  const ops::Matrix d_normed = top(common.scratch.delta, call.tokens);
  in_.backward(call, d_projected, d_operands, d_normed);
  if (!norm_.runs_back()) return;
  norm_.backward(
      call, {.dy = d_normed, .x = stream, .dx = top(common.scratch.gradient, call.tokens), .into = into});
}

}  // namespace octet::model
