#include "layers/mlp/shared_expert.h"

#include <algorithm>
#include <string>

#include "layers/linear_operands.h"
#include "layers/work_list.h"
#include "octet/device/profile.h"
#include "octet/ops/embedding.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/routing.h"

namespace octet::model {

std::size_t TokenGate::workspace(const Device& device, const Common& common) const {
  const std::int64_t rows = common.options.max_tokens, outputs = weight_.rows();
  const ops::GemmArgs logits{.a = {.dtype = common.dtype, .rows = rows, .cols = weight_.cols()},
                             .b = {.dtype = common.dtype, .rows = outputs, .cols = weight_.cols()},
                             .d = {nullptr, DType::f32, rows, outputs, outputs},
                             .fixed_order = common.options.fixed_order};
  const std::size_t bytes = ops::gemm_workspace(device, logits);
  if (!common.options.training) return bytes;
  return std::max(bytes,
                  workspace_of_gemm(device, common,
                                    {.rows = rows, .out = outputs, .in = weight_.cols(), .pitch = outputs}));
}

void TokenGate::forward(const Call& call, const ops::Matrix& x, float* logits) const {
  const bool fixed = call.common.options.fixed_order;
  ops::gemm(call.stream, {.a = operand_of(x),
                          .b = weight_.in(call.parameters).front(),
                          .d = {logits, DType::f32, x.rows, weight_.rows(), weight_.rows()},
                          .bias = bias_.in(call.parameters),
                          .b_stands = !fixed,
                          .fixed_order = fixed,
                          .fast_accumulation = true,
                          .workspace = call.common.scratch.workspace});
}

void TokenGate::backward(const Call& call, const ops::Matrix& x, const ops::Matrix& d_logits,
                         const ops::Matrix& d_x, bool adds) const {
  const auto multiply = [&](ops::GemmKind kind, const ops::Operand& b, const ops::Matrix& d,
                            bool accumulate) {
    ops::gemm(call.stream, {.gemm_kind = kind,
                            .a = operand_of(d_logits),
                            .b = b,
                            .d = d,
                            .accumulate = accumulate,
                            .fixed_order = call.common.options.fixed_order,
                            .workspace = call.common.scratch.workspace});
  };
  const ops::Matrix& d_weight = weight_.in(*call.gradients);
  if (d_weight.data != nullptr)
    multiply(ops::GemmKind::wgrad, operand_of(x), d_weight, !weight_.overwrites(*call.gradients));
  if (float* const d_bias = bias_.in(*call.gradients)) ops::bias_backward(call.stream, d_logits, d_bias);
  if (adds) multiply(ops::GemmKind::dgrad, weight_.in(call.parameters).front(), d_x, true);
}

namespace {

/// "mlp.shared_expert." with a gate, otherwise "mlp.shared_experts."
std::string shared_name(const Architecture& a) {
  return a.experts.shared_gate ? "mlp.shared_expert." : "mlp.shared_experts.";
}

std::optional<TokenGate> gate_of(GroupBuilder& group, const Architecture& a) {
  if (!a.experts.shared_gate) return std::nullopt;
  return TokenGate(group.matrix("shared_gate", a.hidden, {{"mlp.shared_expert_gate.weight", 1}},
                                {.init_std = a.initializer_range, .gradient_by_gemm = true, .expert = true}));
}

}  // namespace

SharedExpert::SharedExpert(GroupBuilder& group, const Architecture& a)
    : hidden_(a.hidden),
      width_(piece_of(kEven, a.experts.shared, a.share).count),
      activation_(a.activation),
      gate_(gate_of(group, a)),
      gate_up_(group, {.name = "shared_gate_up",
                       .title = "shared expert's gate, up",
                       .inputs = a.hidden,
                       .modules = {{shared_name(a) + "gate_proj", a.experts.shared, kEven},
                                   {shared_name(a) + "up_proj", a.experts.shared, kEven}},
                       .init_std = a.initializer_range,
                       .kept_values = true}),
      down_(group, {.name = "shared_down",
                    .title = "shared expert's down",
                    .inputs = a.experts.shared,
                    .modules = {{shared_name(a) + "down_proj", a.hidden}},
                    .init_std = a.initializer_range,
                    .inputs_split = kEven}) {}

void SharedExpert::set_passes_on(bool passes_on) {
  gate_up_.set_passes_on(passes_on);
  down_.set_passes_on(gate_up_.runs_back() || trains_gate());
}

void SharedExpert::reserve(BlockBuffers& buffers, const Common& common) {
  gate_up_.reserve(buffers, common);
  down_.reserve(buffers, common);
  gated_ = buffers.matrix("activations/shared expert", 2 * width_, Kept::activations);
  made_ = buffers.matrix("activations/shared expert", hidden_, Kept::activations);
  if (!gate_) return;
  logits_ = buffers.floats("activations/router", 1, Kept::activations);
  if (!common.options.training) return;
  d_made_ = buffers.matrix("activations/experts' gradients", hidden_, Kept::never);
  d_logits_ = buffers.matrix("activations/experts' gradients", 1, Kept::never);
}

std::size_t SharedExpert::workspace(const Device& device, const Common& common) const {
  return std::max({gate_ ? gate_->workspace(device, common) : 0, gate_up_.workspace(device, common),
                   down_.workspace(device, common)});
}

std::vector<Operation> SharedExpert::operations(std::int64_t tokens) const {
  std::vector<Operation> all = gate_up_.operations(tokens, {0, 0, 0, 1});
  append(all, down_.operations(tokens, {0, 0, 0, 1}));
  return all;
}

void SharedExpert::activate(const Call& call) {
  LinearInput& activated = down_.input();
  const Wanted wanted = activated.wanted(call, WriteOrder::any);
  ops::gated_activation(call.stream, {.gate_up = top(gated_, call.tokens),
                                      .activation = activation_,
                                      .out = wanted.values,
                                      .quantize = wanted.quantize});
  activated.written(call, WriteOrder::any);
}

void SharedExpert::compute(const Call& call) {
  const ProfileLabel label(call.stream, "shared expert");
  gate_up_.input().values_written(call);
  gate_up_.forward(call, top(gated_, call.tokens));
  activate(call);
  down_.forward(call, top(made_, call.tokens));
  if (gate_) gate_->forward(call, input(call), logits_);
}

void SharedExpert::add_to(const Call& call, const ops::Matrix& sum) const {
  ops::gated_rows(call.stream, {.logits = logits_, .x = top(made_, call.tokens), .addend = sum, .out = sum});
}

ops::Matrix SharedExpert::output_gradient(const Call& call) const {
  const ops::Matrix d_out = top(call.common.scratch.gradient, call.tokens);
  if (!gate_) return d_out;
  const ops::Matrix d_made = top(d_made_, call.tokens);
  ops::gated_rows_backward(call.stream, {.logits = logits_,
                                         .x = top(made_, call.tokens),
                                         .d_out = d_out,
                                         .d_x = d_made,
                                         .d_logits = top(d_logits_, call.tokens)});
  return d_made;
}

void SharedExpert::backward(const Call& call, const ops::Matrix& d_input, bool passes_on) {
  const ProfileLabel label(call.stream, "shared expert");
  const Common& common = call.common;
  const ops::Matrix gated = top(gated_, call.tokens);
  if (common.remakes_inputs()) activate(call.again(Readers::backward));
  const ops::Matrix d_made = output_gradient(call);
  const ops::Matrix d_activated = narrowed(common.scratch.wide, call.tokens, width_);
  down_.backward(call, d_made, down_.gradient_written(call, d_made), d_activated);
  if (gate_up_.runs_back()) {
    const Wanted wanted = gate_up_.wanted_gradient(call, gated);
    ops::gated_activation_backward(call.stream, {.gate_up = gated,
                                                 .d_out = d_activated,
                                                 .activation = activation_,
                                                 .d_gate_up = wanted.values,
                                                 .quantize = wanted.quantize});
    const auto operands = gate_up_.gradient_written(call, gated);
    // Later work may have overwritten the operand of the input in the scratch.
    if (common.remakes_inputs()) gate_up_.input().values_written(call.again(Readers::backward));
    gate_up_.backward(call, gated, operands, d_input);
  }
  if (gate_) gate_->backward(call, input(call), top(d_logits_, call.tokens), d_input, passes_on);
}

}  // namespace octet::model
