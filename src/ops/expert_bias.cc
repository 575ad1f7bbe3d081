#include "octet/ops/expert_bias.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"
#include "octet/ops/routing.h"

namespace octet::ops {
namespace {

bool has_experts(std::int64_t count, const std::int32_t* begins) {
  return count > 0 && count <= kMostExperts && begins != nullptr;
}

}  // namespace

void expert_bias(Stream& stream, const ExpertBiasArgs& args) {
  check(is_matrix(args.x), "expert_bias: x is [rows, cols] T");
  if (args.x.rows * args.x.cols == 0) return;
  check(has_experts(args.count, args.begins) && args.bias != nullptr,
        "expert_bias: there are experts with biases, and not too many");
  OCTET_DISPATCH(stream, expert_bias, args);
}

void expert_bias_backward(Stream& stream, const ExpertBiasBackwardArgs& args) {
  check(is_matrix(args.d_y), "expert_bias_backward: d_y is [rows, cols] T");
  if (args.d_y.rows * args.d_y.cols == 0) return;
  check(has_experts(args.count, args.begins) && args.d_bias != nullptr,
        "expert_bias_backward: there are experts with gradients, and not too many");
  OCTET_DISPATCH(stream, expert_bias_backward, args);
}

void expert_bias_weights(Stream& stream, const ExpertBiasWeightsArgs& args) {
  check(is_matrix(args.d_tokens), "expert_bias_weights: d_tokens is [tokens, cols] T");
  if (args.rows == 0) return;
  check(has_experts(args.count, args.begins) && args.bias != nullptr && args.row_tokens != nullptr &&
            args.d_weights != nullptr,
        "expert_bias_weights: there are experts with biases, tokens and gradients of weights");
  OCTET_DISPATCH(stream, expert_bias_weights, args);
}

}  // namespace octet::ops
