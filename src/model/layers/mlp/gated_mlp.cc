#include "layers/mlp/gated_mlp.h"

#include <algorithm>
#include <cmath>

#include "octet/device/profile.h"
#include "octet/ops/gated_activation.h"

namespace octet::model {
namespace {

/// The width of the MLP in the whole model.
std::int64_t width_of(const Architecture& a, std::int64_t layer) {
  return a.block(layer).intermediate;
}

LinearShape gate_up_shape(const Architecture& a, std::int64_t width) {
  LinearShape shape{.name = "gate_up",
                    .title = a.gated ? "MLP gate, up" : "MLP up",
                    .inputs = a.hidden,
                    .modules = {{"mlp.gate_proj", width, kEven}, {"mlp.up_proj", width, kEven}},
                    .bias = a.mlp_bias,
                    .init_std = a.initializer_range,
                    .reads_stream = !a.input_norms};
  if (!a.gated) shape.modules = {{named_or(a.names.up, "mlp.up_proj"), width, kEven}};
  if (a.fused_gate_up) shape.modules = {fused("mlp.gate_up_proj", shape.modules)};
  return shape;
}

LinearShape down_shape(const Architecture& a, std::int64_t width) {
  return {.name = "down",
          .title = "MLP down",
          .inputs = width,
          .modules = {{named_or(a.names.down, "mlp.down_proj"), a.hidden}},
          .bias = a.mlp_bias,
          .init_std = a.initializer_range,
          .inputs_split = kEven,
          .adds_bias = a.share.adds_once()};
}

}  // namespace

// Families with post-norms use another name for the norm before the MLP.
std::string mlp_norm_name(const Architecture& a) {
  return named_or(a.names.mlp_norm,
                  a.sublayer_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm");
}

GatedMlp::GatedMlp(GroupBuilder& group, const Architecture& a, std::int64_t layer, const InputNorm* shared)
    : width_(piece_of(kEven, width_of(a, layer), a.share).count),
      has_gate_(a.gated),
      parallel_(shared != nullptr),
      activation_(a.activation),
      norm_(parallel_ ? *shared : InputNorm(group, "mlp_norm", mlp_norm_name(a), a)),
      gate_up_(group, gate_up_shape(a, width_of(a, layer))),
      output_(group, a, down_shape(a, width_of(a, layer)), "mlp_output_norm",
              named_or(a.names.mlp_output_norm, "post_feedforward_layernorm")) {
  if (output_.norm()) norm_.set_other(*output_.norm());
  if (activation_ != ops::Activation::xielu) return;
  // The initial slopes of transformers: softplus(alpha_p) = 0.8, beta + softplus(alpha_n) = 0.8.
  const double beta = 0.5, slope = 0.8;
  const auto alpha = [&](const char* name, double value) {
    return group.vector(name, {{std::string("mlp.act_fn.") + name, 1}}, InitRule::value, 0,
                        std::log(std::expm1(value)));
  };
  alpha_p_ = alpha("alpha_p", slope);
  alpha_n_ = alpha("alpha_n", slope - beta);
  beta_ = group.number("beta", "mlp.act_fn.beta", beta);
  eps_ = group.number("eps", "mlp.act_fn.eps", -1e-6);
}

void GatedMlp::set_passes_on(bool passes_on) {
  norm_.set_passes_on(passes_on);
  gate_up_.set_passes_on(norm_.runs_back());
  output_.set_passes_on(activates_back());
}

ops::Xielu GatedMlp::xielu(const Call& call) const {
  return {.alpha_p = alpha_p_.in(call.parameters),
          .alpha_n = alpha_n_.in(call.parameters),
          .beta = beta_.in(call.parameters),
          .eps = eps_.in(call.parameters)};
}

ops::Matrix GatedMlp::d_normed(const Call& call) const {
  const Scratch& scratch = call.common.scratch;
  return top(parallel_ ? scratch.d_added : scratch.delta, call.tokens);
}

void GatedMlp::reserve(BlockBuffers& buffers, const Common& common) {
  norm_.reserve(buffers);
  gate_up_.reserve(buffers, common);
  output_.reserve(buffers, common);
  gated_ = buffers.matrix("activations/gate and up", has_gate_ ? 2 * width_ : width_, Kept::activations);
}

std::size_t GatedMlp::workspace(const Device& device, const Common& common) const {
  const bool trains = common.options.training, sums = trains && alpha_p_.trained();
  return std::max({gate_up_.workspace(device, common), output_.linear().workspace(device, common),
                   trains ? norm_.workspace(device, common) : 0,
                   sums ? ops::activation_backward_workspace(device, common.options.max_tokens, width_) : 0});
}

std::vector<Operation> GatedMlp::operations(std::int64_t tokens) const {
  const int inputs = gate_up_.runs_back() ? 1 : 0;
  std::vector<Operation> all = norm_.operations(tokens, {0, inputs, inputs, 1});
  append(all, gate_up_.operations(tokens, {0, 0, 0, 1}));
  const double values = static_cast<double>(tokens) * static_cast<double>(width_);
  all.push_back(moves(OperationKind::activation, (has_gate_ ? 3 : 2) * values, {0, 1, 1, 1}));
  if (activates_back()) all.push_back(moves_back(OperationKind::activation, (has_gate_ ? 5 : 3) * values));
  // Backward reads the MLP's output only for the norm of it.
  append(all, output_.operations(tokens, {0, 0, 0, output_.normed() ? 1 : 0}));
  return all;
}

void GatedMlp::normalise(const Call& call, const NormInput& input, const ops::Matrix& stream) {
  norm_.forward(call, input, stream, gate_up_.input());
}

void GatedMlp::activate(const Call& call) {
  LinearInput& activated = output_.linear().input();
  const Wanted wanted = activated.wanted(call, WriteOrder::any);
  if (!has_gate_) {
    ops::activation(call.stream, {.x = top(gated_, call.tokens),
                                  .activation = activation_,
                                  .xielu = xielu(call),
                                  .out = wanted.values,
                                  .quantize = wanted.quantize});
    return activated.written(call, WriteOrder::any);
  }
  ops::gated_activation(call.stream, {.gate_up = top(gated_, call.tokens),
                                      .activation = activation_,
                                      .out = wanted.values,
                                      .quantize = wanted.quantize});
  activated.written(call, WriteOrder::any);
}

bool GatedMlp::forward_decode(const Call& call, const NormInput& before, const ops::Matrix& stream,
                              const ops::Matrix& after) const {
  // The kernel does not store a pending sum, and has no activation without a gate.
  if (before.delta.data != nullptr || !has_gate_) return false;
  // Gate and up are not stored. Their buffer holds the activated values.
  ops::DecodeGemmArgs args{.x = before.residual,
                           .end = ops::DecodeGemmArgs::End::gated,
                           .activation = activation_,
                           .y = narrowed(gated_, call.tokens, width_)};
  if (!norm_.put_in_front(call, args)) return false;
  if (!gate_up_.takes_decode(call, args) || !output_.takes_decode(call, args.y, stream, after)) return false;
  gate_up_.forward_decode(call, args);
  output_.forward_decode(call, args.y, stream, after);
  return true;
}

void GatedMlp::forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                       const ops::Matrix& after) {
  if (forward_decode(call, before, stream, after)) return;
  call.settle();
  normalise(call, before, stream);
  gate_up_.forward(call, top(gated_, call.tokens));
  activate(call);
  // Backward reads the MLP's output only for the norm of it.
  if (call.pass.recompute && !output_.normed()) return output_.linear().remake(call);
  output_.forward(call, stream, after);
}

void GatedMlp::backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) {
  const Common& common = call.common;
  const Call again = call.again(Readers::backward);
  if (common.remakes_inputs()) {
    const ProfileLabel label(call.stream, "recompute");
    activate(again);
  }
  const ops::Matrix d_activated = narrowed(common.scratch.wide, call.tokens, width_);
  output_.backward(call, d_activated);
  if (!activates_back()) return;
  const ops::Matrix gated = top(gated_, call.tokens);  // its gradient overwrites it
  activate_back(call, d_activated, gate_up_.wanted_gradient(call, gated));
  if (!gate_up_.runs_back()) return;
  const auto d_operands = gate_up_.gradient_written(call, gated);
  if (common.remakes_inputs()) {
    const ProfileLabel label(call.stream, "recompute");
    normalise(again, {.residual = stream}, stream);
  }
  gate_up_.backward(call, gated, d_operands, d_normed(call));
  if (!parallel_) pass_on(call, stream, into);
}

void GatedMlp::activate_back(const Call& call, const ops::Matrix& d_activated, const Wanted& wanted) const {
  const ops::Matrix gated = top(gated_, call.tokens);
  if (has_gate_) {
    return ops::gated_activation_backward(call.stream, {.gate_up = gated,
                                                        .d_out = d_activated,
                                                        .activation = activation_,
                                                        .d_gate_up = wanted.values,
                                                        .quantize = wanted.quantize});
  }
  const bool sums = activation_ == ops::Activation::xielu;
  ops::activation_backward(call.stream, {.x = gated,
                                         .d_out = d_activated,
                                         .activation = activation_,
                                         .xielu = xielu(call),
                                         .d_x = sums ? gated : wanted.values,
                                         .quantize = wanted.quantize,
                                         .d_alpha_p = alpha_p_.in(*call.gradients),
                                         .d_alpha_n = alpha_n_.in(*call.gradients),
                                         .workspace = call.common.scratch.workspace});
}

void GatedMlp::pass_on(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) {
  if (!norm_.runs_back()) return;
  norm_.backward(call, {.dy = d_normed(call),
                        .x = stream,
                        .dx = top(call.common.scratch.gradient, call.tokens),
                        .into = into});
}

}  // namespace octet::model
