#include "layers/mlp/gated_mlp.h"

#include <algorithm>

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
                    .title = "MLP gate, up",
                    .inputs = a.hidden,
                    .modules = {{"mlp.gate_proj", width, kEven}, {"mlp.up_proj", width, kEven}},
                    .bias = a.mlp_bias,
                    .init_std = a.initializer_range,
                    .reads_stream = !a.input_norms};
  if (a.fused_projections) shape.modules = {fused("mlp.gate_up_proj", shape.modules)};
  return shape;
}

LinearShape down_shape(const Architecture& a, std::int64_t width) {
  return {.name = "down",
          .title = "MLP down",
          .inputs = width,
          .modules = {{"mlp.down_proj", a.hidden}},
          .bias = a.mlp_bias,
          .init_std = a.initializer_range,
          .inputs_split = kEven,
          .adds_bias = a.share.adds_once()};
}

}  // namespace

// Families with post-norms use another name for the norm before the MLP.
const char* mlp_norm_name(const Architecture& a) {
  return a.sublayer_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm";
}

GatedMlp::GatedMlp(GroupBuilder& group, const Architecture& a, std::int64_t layer)
    : width_(piece_of(kEven, width_of(a, layer), a.share).count),
      activation_(a.activation),
      norm_(group, "mlp_norm", mlp_norm_name(a), a),
      gate_up_(group, gate_up_shape(a, width_of(a, layer))),
      output_(group, a, down_shape(a, width_of(a, layer)), "mlp_output_norm", "post_feedforward_layernorm") {
  if (output_.norm()) norm_.set_other(*output_.norm());
}

void GatedMlp::set_passes_on(bool passes_on) {
  norm_.set_passes_on(passes_on);
  gate_up_.set_passes_on(norm_.runs_back());
  output_.set_passes_on(gate_up_.runs_back());
}

void GatedMlp::reserve(BlockBuffers& buffers, const Common& common) {
  norm_.reserve(buffers);
  gate_up_.reserve(buffers, common);
  output_.reserve(buffers, common);
  gated_ = buffers.matrix("activations/gate and up", 2 * width_, Kept::activations);
}

std::size_t GatedMlp::workspace(const Device& device, const Common& common) const {
  return std::max({gate_up_.workspace(device, common), output_.linear().workspace(device, common),
                   common.options.training ? norm_.workspace(device, common) : 0});
}

std::vector<Operation> GatedMlp::operations(std::int64_t tokens) const {
  const int inputs = gate_up_.runs_back() ? 1 : 0;
  std::vector<Operation> all = norm_.operations(tokens, {0, inputs, inputs, 1});
  append(all, gate_up_.operations(tokens, {0, 0, 0, 1}));
  const double values = static_cast<double>(tokens) * static_cast<double>(width_);
  all.push_back(moves(OperationKind::activation, 3 * values, {0, 1, 1, 1}));
  if (gate_up_.runs_back()) all.push_back(moves_back(OperationKind::activation, 5 * values));
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
  ops::gated_activation(call.stream, {.gate_up = top(gated_, call.tokens),
                                      .activation = activation_,
                                      .out = wanted.values,
                                      .quantize = wanted.quantize});
  activated.written(call, WriteOrder::any);
}

bool GatedMlp::forward_decode(const Call& call, const NormInput& before, const ops::Matrix& stream,
                              const ops::Matrix& after) const {
  if (before.delta.data != nullptr) return false;  // the kernel does not store a pending sum
  // Gate and up are not stored. Their buffer holds the activated values.
  ops::DecodeGemmArgs args{.x = before.residual,
                           .end = ops::DecodeGemmArgs::End::gated,
                           .activation = activation_,
                           .y = narrowed(gated_, call.tokens, width_)};
  norm_.put_in_front(call, args);
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
  if (!gate_up_.runs_back()) return;
  const ops::Matrix gated = top(gated_, call.tokens);  // its gradient overwrites it
  const Wanted wanted = gate_up_.wanted_gradient(call, gated);
  ops::gated_activation_backward(call.stream, {.gate_up = gated,
                                               .d_out = d_activated,
                                               .activation = activation_,
                                               .d_gate_up = wanted.values,
                                               .quantize = wanted.quantize});
  const auto d_operands = gate_up_.gradient_written(call, gated);
  if (common.remakes_inputs()) {
    const ProfileLabel label(call.stream, "recompute");
    normalise(again, {.residual = stream}, stream);
  }
  const ops::Matrix d_normed = top(common.scratch.delta, call.tokens);
  gate_up_.backward(call, gated, d_operands, d_normed);
  if (!norm_.runs_back()) return;
  norm_.backward(
      call, {.dy = d_normed, .x = stream, .dx = top(common.scratch.gradient, call.tokens), .into = into});
}

}  // namespace octet::model
