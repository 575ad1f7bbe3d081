#include "layers/self_attention.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/device/profile.h"

namespace octet::model {
namespace {

LinearShape qkv_shape(const Architecture& a, std::int64_t layer) {
  const ops::Heads heads = a.heads_of(layer);
  const std::int64_t kv = heads.kv_heads * heads.head_dim;
  const std::int64_t of_query = (a.output_gate ? 2 : 1) * heads.head_dim;  // a head's query, and its gate
  const Part q{"self_attn.q_proj", of_query * heads.q_heads, each_head(of_query)};
  LinearShape shape{.name = "qkv",
                    .title = "attention q, k, v",
                    .inputs = a.hidden,
                    .modules = {q,
                                {"self_attn.k_proj", kv, each_kv_head(heads.head_dim)},
                                {"self_attn.v_proj", kv, each_kv_head(heads.head_dim)}},
                    .bias = a.qkv_bias,
                    .init_std = a.initializer_range,
                    .reads_stream = !a.input_norms};
  if (a.block(layer).keys_as_values) shape.modules.pop_back();
  if (a.fused_qkv) shape.modules = {fused("self_attn.qkv_proj", shape.modules)};
  return shape;
}

LinearShape output_shape(const Architecture& a, std::int64_t layer) {
  const ops::Heads heads = a.heads_of(layer);
  return {.name = "output",
          .title = "attention output",
          .inputs = heads.q_heads * heads.head_dim,
          .modules = {{"self_attn.o_proj", a.hidden}},
          .bias = a.output_bias,
          .init_std = a.initializer_range,
          .kept_values = !a.output_gate,  // backward of attention reads them, or OutputGates::attended()
          .inputs_split = each_head(heads.head_dim),
          .adds_bias = a.share.adds_once()};
}

}  // namespace

Attention::Attention(GroupBuilder& group, const Architecture& a, std::int64_t layer)
    : norm_(group, "input_norm", named_or(a.names.input_norm, "input_layernorm"), a),
      rotary_(group, a, layer),
      qkv_(group, qkv_shape(a, layer)),
      gates_(a),
      value_norm_(a, layer),
      heads_(group, a, layer),
      output_(group, a, output_shape(a, layer), "attention_output_norm",
              named_or(a.names.attention_output_norm, "post_attention_layernorm")) {
  if (output_.norm()) norm_.set_other(*output_.norm());
  check(!gates_ || !value_norm_, "values with norms have no gates");
}

void Attention::set_passes_on(bool passes_on) {
  norm_.set_passes_on(passes_on);
  qkv_.set_passes_on(norm_.runs_back());
  output_.set_passes_on(attends_back());
}

void Attention::reserve(BlockBuffers& buffers, const Common& common) {
  norm_.reserve(buffers);
  rotary_.reserve(buffers, common);
  qkv_.reserve(buffers, common);
  gates_.reserve(buffers, common);
  value_norm_.reserve(buffers, common);
  output_.reserve(buffers, common);
  const std::int64_t width = heads_.heads().qkv_width();
  rotated_ = buffers.matrix("activations/qkv", width, Kept::qkv);
  if (common.options.training) d_rotated_ = buffers.matrix("activations/gradients", width, Kept::never);
  heads_.reserve(buffers, common);
}

std::size_t Attention::workspace(const Device& device, const Common& common) const {
  return std::max({heads_.workspace(device, common), rotary_.workspace(device, common),
                   value_norm_.workspace(device, common), qkv_.workspace(device, common),
                   output_.linear().workspace(device, common),
                   common.options.training ? norm_.workspace(device, common) : 0});
}

std::vector<Operation> Attention::operations(std::int64_t tokens, std::int64_t length) const {
  // Backward recomputes only activations that it reads.
  const int inputs = qkv_.runs_back() ? 1 : 0, heads = attends_back() ? 1 : 0;
  std::vector<Operation> all = norm_.operations(tokens, {0, inputs, inputs + heads, 1});
  append(all, qkv_.operations(tokens, {0, 0, gates_ ? 1 : heads, 1}));
  append(all, gates_.operations(tokens, attends_back()));
  append(all, value_norm_.operations(tokens, attends_back()));
  append(all, rotary_.operations(tokens, attends_back()));
  append(all, heads_.operations(tokens, length, attends_back()));
  append(all, output_.operations(tokens, {0, 0, 0, 1}));
  return all;
}

void Attention::normalise(const Call& call, const NormInput& input, const ops::Matrix& stream) {
  norm_.forward(call, input, stream, qkv_.input());
}

ops::Matrix Attention::attended(const Call& call) const {
  return gates_ ? gates_.attended(call) : output_.linear().input().values(call);
}

void Attention::project(const Call& call, const NormInput& before, const ops::Matrix& stream) {
  const ops::Matrix qkv = top(rotated_, call.tokens);
  call.settle();
  normalise(call, before, stream);
  qkv_.forward(call, gates_ ? gates_.projected(call) : value_norm_.projected(qkv));
  if (gates_) gates_.take(call, qkv);
  value_norm_.forward(call, qkv);
  rotary_.forward(call, qkv);
}

bool Attention::project_decode(const Call& call, const NormInput& before) const {
  // The kernel does not store a pending sum, and writes dense rows.
  if (before.delta.data != nullptr || value_norm_.reads_keys()) return false;
  const ops::Matrix qkv = top(rotated_, call.tokens);
  ops::DecodeGemmArgs args{.x = before.residual, .y = gates_ ? gates_.projected(call) : qkv};
  if (!norm_.put_in_front(call, args)) return false;
  const bool rotates = !gates_ && rotary_.put_behind(call, args);
  if (!qkv_.takes_decode(call, args)) return false;
  qkv_.forward_decode(call, args);
  if (rotates) return true;
  call.settle();
  if (gates_) gates_.take(call, qkv);
  value_norm_.forward(call, qkv);
  rotary_.forward(call, qkv);
  return true;
}

void Attention::finish_heads(const Call& call) {
  LinearInput& heads = output_.linear().input();
  if (!gates_) return heads.values_written(call);
  gates_.apply(call, heads.wanted(call, WriteOrder::rows));
  heads.written(call, WriteOrder::rows);
}

void Attention::forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                        const ops::Matrix& after) {
  if (!project_decode(call, before)) project(call, before, stream);
  call.settle();
  const ops::Matrix heads = attended(call);
  heads_.forward(call, top(rotated_, call.tokens), heads);
  if (output_.takes_decode(call, heads, stream, after)) {
    if (gates_) gates_.apply(call, {.values = heads});
    return output_.forward_decode(call, heads, stream, after);
  }
  finish_heads(call);
  output_.forward(call, stream, after);
}

void Attention::remake_qkv(const Call& call, const ops::Matrix& stream) {
  project(call.again(Readers::forward), {.residual = stream}, stream);
}

ops::Matrix Attention::backward_to_projection(const Call& call, const ops::Matrix& d_qkv,
                                              std::vector<ops::Operand>& operands) {
  const bool from_keys = value_norm_.reads_keys();
  if (!from_keys) value_norm_.backward(call, d_qkv, {});
  // Columns of gates are added, and gradients of values, before a recipe quantises.
  const bool later = gates_ || from_keys;
  Wanted wanted{.values = d_qkv};
  if (!later) wanted = qkv_.runs_back() ? qkv_.wanted_gradient(call, d_qkv) : Wanted{};
  rotary_.backward(call, d_qkv, wanted);
  if (!qkv_.runs_back()) return {};
  if (from_keys) value_norm_.backward(call, d_qkv, rotary_.raw_keys(call));
  const ops::Matrix projected = gates_ ? gates_.put(call, d_qkv) : value_norm_.put(call, d_qkv);
  operands = later ? qkv_.gradient_values_written(call, projected) : qkv_.gradient_written(call, projected);
  return projected;
}

void Attention::backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) {
  const Common& common = call.common;
  if (common.remakes_inputs()) {
    const ProfileLabel label(call.stream, "recompute");
    if (common.remakes_qkv() && (gates_ || attends_back())) remake_qkv(call, stream);
    finish_heads(call.again(Readers::backward));
  }
  const ops::Matrix d_out = narrowed(common.scratch.wide, call.tokens, attended(call).cols);
  output_.backward(call, d_out);
  if (!attends_back()) return;
  if (gates_) gates_.backward(call, d_out);
  const ops::Matrix d_qkv = top(d_rotated_, call.tokens);
  heads_.backward(call, top(rotated_, call.tokens), attended(call), d_out, d_qkv);
  std::vector<ops::Operand> d_operands;
  const ops::Matrix d_projected = backward_to_projection(call, d_qkv, d_operands);
  if (!qkv_.runs_back()) return;
  if (common.remakes_inputs()) {
    // The gradient of attention's output has overwritten the first recomputation.
    const ProfileLabel label(call.stream, "recompute");
    normalise(call.again(Readers::backward), {.residual = stream}, stream);
  }
  const ops::Matrix d_normed = top(common.scratch.delta, call.tokens);
  qkv_.backward(call, d_projected, d_operands, d_normed);
  if (!norm_.runs_back()) return;
  norm_.backward(
      call, {.dy = d_normed, .x = stream, .dx = top(common.scratch.gradient, call.tokens), .into = into});
}

}  // namespace octet::model
