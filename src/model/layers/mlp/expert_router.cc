#include "layers/mlp/expert_router.h"

#include <algorithm>
#include <cmath>

#include "layers/mlp/expert_names.h"
#include "octet/base/index.h"
#include "octet/device/profile.h"
#include "octet/ops/routing.h"

namespace octet::model {
namespace {

VectorHandle choice_bias_of(GroupBuilder& group, const ExpertShape& shape) {
  if (!shape.choice_bias) return {};
  return group.constant("router_bias", {{names_of(shape).router + ".e_score_correction_bias", shape.count}});
}

VectorHandle bias_of(GroupBuilder& group, const ExpertShape& shape, double init_std) {
  if (!shape.biases) return {};
  return group.vector("router_bias", {{names_of(shape).router + ".bias", shape.count}}, InitRule::normal, 0,
                      init_std);
}

}  // namespace

ExpertRouter::ExpertRouter(GroupBuilder& group, const Architecture& a)
    : shape_(a.experts),
      hidden_(a.hidden),
      gate_(group.matrix("router", a.hidden, {{names_of(shape_).router + ".weight", shape_.count}},
                         {.init_std = a.initializer_range, .gradient_by_gemm = true, .expert = true}),
            bias_of(group, shape_, a.initializer_range)),
      choice_bias_(choice_bias_of(group, shape_)) {}

void ExpertRouter::reserve(BlockBuffers& buffers) {
  const std::int64_t taken = shape_.taken;
  logits_ = buffers.floats("activations/router", shape_.count, Kept::activations);
  const auto numbers = [&](const char* name) {
    return reinterpret_cast<std::int32_t*>(buffers.floats(name, taken, Kept::activations));
  };
  taken_ = numbers("activations/taken experts");
  shares_ = buffers.floats("activations/shares of experts", taken, Kept::activations);
  begins_ = static_cast<std::int32_t*>(buffers.take(
      "activations/experts' first rows", index(shape_.count + 1) * sizeof(std::int32_t), Kept::activations));
  row_tokens_ = numbers("activations/tokens of experts");
  places_ = numbers("activations/rows of tokens");
  weights_ = buffers.floats("activations/weights of experts", taken, Kept::activations);
  host_begins_.resize(index(shape_.count + 1));
}

void ExpertRouter::reserve_gradients(BlockBuffers& buffers) {
  d_logits_ = buffers.matrix("activations/experts' gradients", shape_.count, Kept::never);
  d_weights_ = buffers.floats("activations/experts' gradients", shape_.taken, Kept::never);
}

std::size_t ExpertRouter::workspace(const Device& device, const Common& common) const {
  const std::size_t bytes = gate_.workspace(device, common);
  if (!common.options.training) return bytes;
  return std::max(
      {bytes, ops::add_load_workspace(device, shape_.count), ops::add_log_sums_workspace(device)});
}

std::vector<Operation> ExpertRouter::operations(std::int64_t tokens, bool passes_on) const {
  std::vector<Operation> all;
  const LinearLayer router{.name = "router", .title = "router", .rows = shape_.count, .cols = hidden_};
  for (Operation& one : gemms_of(router, tokens, {0, 0, 0, 1})) {
    if (one.gemm_kind == ops::GemmKind::dgrad && !passes_on) continue;
    if (one.gemm_kind == ops::GemmKind::wgrad && !gate_.trains_weight()) continue;
    all.push_back(std::move(one));
  }
  return all;
}

void ExpertRouter::forward(const Call& call, const ops::Matrix& normed) {
  const ProfileLabel label(call.stream, "router");
  const ops::Matrix logits{
      .data = logits_, .dtype = DType::f32, .rows = call.tokens, .cols = shape_.count, .ld = shape_.count};
  gate_.forward(call, normed, logits_);
  ops::route(call.stream, {.logits = logits,
                           .taken = shape_.taken,
                           .normalised = shape_.normalised,
                           .scores = shape_.scores,
                           .scale = static_cast<float>(shape_.scale),
                           .bias = choice_bias_.in(call.parameters),
                           .groups = shape_.groups,
                           .taken_groups = shape_.taken_groups,
                           .group_best = shape_.group_best,
                           .given = call.given_experts,
                           .experts = taken_,
                           .weights = shares_});
  if (call.chosen_experts != nullptr) {
    const auto count = index(call.tokens * shape_.taken);
    call.stream.device().copy(call.stream, call.chosen_experts, taken_, count * sizeof(std::int32_t));
  }
  deal(call);
  if (call.pass.record) add_to_losses(call, logits);
  const bool trains = call.pass.record || call.pass.recompute;
  if (call.common.options.expert_capacity > 0 && trains) limit(call);
}

void ExpertRouter::deal(const Call& call) {
  ops::deal(call.stream, {.experts = taken_,
                          .weights = shares_,
                          .tokens = call.tokens,
                          .taken = shape_.taken,
                          .count = shape_.count,
                          .begins = begins_,
                          .row_tokens = row_tokens_,
                          .places = places_,
                          .place_weights = weights_});
}

void ExpertRouter::limit(const Call& call) {
  const double even = static_cast<double>(call.tokens * shape_.taken) / static_cast<double>(shape_.count);
  const double capacity = std::ceil(even * call.common.options.expert_capacity);
  if (capacity >= static_cast<double>(call.tokens)) return;
  ops::limit_rows(call.stream, {.experts = taken_,
                                .weights = shares_,
                                .taken = shape_.taken,
                                .count = shape_.count,
                                .capacity = static_cast<std::int64_t>(capacity),
                                .begins = begins_,
                                .row_tokens = row_tokens_});
  deal(call);
}

void ExpertRouter::add_to_losses(const Call& call, const ops::ConstMatrix& logits) const {
  const RouterSums& sums = call.common.scratch.routers;
  const ops::Workspace& workspace = call.common.scratch.workspace;
  if (sums.counts != nullptr) {
    ops::add_load(call.stream, {.logits = logits,
                                .begins = begins_,
                                .counts = sums.counts,
                                .probabilities = sums.probabilities,
                                .workspace = workspace});
  }
  if (sums.log_sums != nullptr)
    ops::add_log_sums(call.stream, {.logits = logits, .sum = sums.log_sums, .workspace = workspace});
}

void ExpertRouter::clear_begins() {
  std::ranges::fill(host_begins_, 0);
}

void ExpertRouter::read_begins(const Call& call) {
  if (call.tokens == 0) {
    clear_begins();
    return call.stream.synchronize();
  }
  call.stream.device().copy_to_host(call.stream, host_begins_.data(), begins_,
                                    host_begins_.size() * sizeof(std::int32_t));
  call.stream.synchronize();
}

void ExpertRouter::count_load(const Call& call) {
  if (call.pass.recompute) return;
  BlockLoad& of = load(call.pass.record ? LoadOf::training : LoadOf::evaluation);
  for (std::size_t e = 0; e < of.rows.size(); ++e) of.rows[e] += host_begins_[e + 1] - host_begins_[e];
  of.dropped += call.tokens * shape_.taken - host_begins_.back();
}

void ExpertRouter::backward(const Call& call, const ops::Matrix& normed, const ops::Matrix& d_normed,
                            bool passes_on) {
  const ProfileLabel label(call.stream, "router");
  const ops::Matrix d_logits = top(d_logits_, call.tokens);
  ops::route_backward(call.stream, {.logits = {logits_, DType::f32, call.tokens, shape_.count, shape_.count},
                                    .taken = shape_.taken,
                                    .normalised = shape_.normalised,
                                    .scores = shape_.scores,
                                    .scale = static_cast<float>(shape_.scale),
                                    .experts = taken_,
                                    .places = places_,
                                    .d_weights = d_weights_,
                                    .d_probabilities = call.common.scratch.routers.d_probabilities,
                                    .z_slope = call.common.scratch.routers.z_slope,
                                    .d_logits = d_logits});
  gate_.backward(call, normed, d_logits, d_normed, passes_on);
}

}  // namespace octet::model
