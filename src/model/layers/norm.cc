#include "layers/norm.h"

#include "octet/base/error.h"
#include "octet/ops/layer_norm.h"
#include "octet/ops/rms_norm.h"

namespace octet::model {

Norm::Norm(GroupBuilder& group, const std::string& name, const std::string& module, std::int64_t width,
           const Architecture& a, bool of_stream)
    : weight_(group.vector(name, {{module + ".weight", width}}, norm_init(a))),
      layer_norm_(a.layer_norm),
      width_(width),
      eps_(static_cast<float>(of_stream ? a.stream_eps() : a.norm_eps)),
      one_plus_weight_(a.one_plus_weight) {
  check(!layer_norm_ || !one_plus_weight_, "layer norms multiply by their weight");
  if (layer_norm_ && a.norm_bias)
    bias_ = group.vector(name + "_bias", {{module + ".bias", width}}, InitRule::zeros);
}

std::size_t Norm::workspace(const Device& device, const Common& common) const {
  const std::int64_t tokens = common.options.max_tokens;
  return layer_norm_ ? ops::layer_norm_backward_workspace(device, tokens, width_)
                     : ops::rms_norm_backward_workspace(device, tokens, width_);
}

// Forward reads the stream and the addend, and writes the sum and its norm. Backward moves as many values.
std::vector<Operation> Norm::operations(std::int64_t tokens, const Repeats& again) const {
  const double values = 4 * static_cast<double>(tokens) * static_cast<double>(width_);
  std::vector<Operation> all = {moves(OperationKind::norm, values, again)};
  if (runs_back()) all.push_back(moves_back(OperationKind::norm, values));
  return all;
}

void Norm::forward(const Call& call, const NormInput& input, const Wanted& out) const {
  if (layer_norm_) {
    return ops::layer_norm(call.stream, {.residual = input.residual,
                                         .delta = input.delta,
                                         .sum = input.sum,
                                         .weight = weight_.in(call.parameters),
                                         .bias = bias_.in(call.parameters),
                                         .eps = eps_,
                                         .out = out.values,
                                         .mean = means(call),
                                         .rstd = rstd_,
                                         .quantize = out.quantize});
  }
  ops::rms_norm(call.stream, {.residual = input.residual,
                              .delta = input.delta,
                              .sum = input.sum,
                              .weight = weight_.in(call.parameters),
                              .eps = eps_,
                              .one_plus_weight = one_plus_weight_,
                              .out = out.values,
                              .rstd = rstd_,
                              .quantize = out.quantize});
}

bool Norm::put_in_front(const Call& call, ops::DecodeGemmArgs& of) const {
  if (layer_norm_) return false;
  of.norm_weight = weight_.in(call.parameters);
  of.eps = eps_;
  of.one_plus_weight = one_plus_weight_;
  return true;
}

void Norm::add(const Call& call, const NormInput& input) const {
  ops::rms_norm(call.stream, {.residual = input.residual,
                              .delta = input.delta,
                              .sum = input.sum,
                              .weight = weight_.in(call.parameters),
                              .eps = eps_});
}

void Norm::backward(const Call& call, const Gradient& gradient) const {
  if (layer_norm_) {
    return ops::layer_norm_backward(call.stream, {.dy = gradient.dy,
                                                  .x = gradient.x,
                                                  .mean = means(call),
                                                  .rstd = rstd_,
                                                  .weight = weight_.in(call.parameters),
                                                  .d_residual = gradient.dx,
                                                  .accumulate = gradient.accumulate,
                                                  .d_weight = weight_.in(*call.gradients),
                                                  .d_bias = bias_.in(*call.gradients),
                                                  .quantize = gradient.into,
                                                  .workspace = call.common.scratch.workspace});
  }
  ops::rms_norm_backward(call.stream, {.dy = gradient.dy,
                                       .x = gradient.x,
                                       .rstd = rstd_,
                                       .weight = weight_.in(call.parameters),
                                       .one_plus_weight = one_plus_weight_,
                                       .d_residual = gradient.dx,
                                       .accumulate = gradient.accumulate,
                                       .d_weight = weight_.in(*call.gradients),
                                       .quantize = gradient.into,
                                       .workspace = call.common.scratch.workspace});
}

}  // namespace octet::model
