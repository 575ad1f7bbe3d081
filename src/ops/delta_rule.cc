#include "octet/ops/delta_rule.h"

#include <algorithm>

#include "cuda/delta_scratch.h"
#include "delta_checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

namespace cpu {
std::size_t delta_rule_workspace(const DeltaHeads& heads);
}

namespace {

void check_delta_qkv(const ConstMatrix& qkv, const DeltaHeads& heads) {
  check(are_delta_heads(heads),
        "delta rule: every key head serves equally many value heads; key_dim and value_dim are multiples "
        "of 8, at most 256");
  check(is_matrix(qkv) && qkv.cols == heads.qkv_width(),
        "delta rule: qkv must be [tokens, heads.qkv_width()] T");
}

void check_delta_gates(const float* log_decay, const float* beta) {
  check(log_decay != nullptr && beta != nullptr, "delta rule: log_decay and beta are missing");
}

}  // namespace

void delta_rule(Stream& stream, const DeltaRuleArgs& args) {
  check_delta_qkv(args.qkv, args.heads);
  const std::int64_t tokens = args.qkv.rows;
  check(are_documents(args.documents, tokens), "delta_rule: the documents must describe the tokens of qkv");
  check(is_of(args.out, args.qkv.dtype, tokens, args.heads.values()),
        "delta_rule: out must be [tokens, heads.values()] of qkv's dtype");
  if (tokens == 0) return;
  check_delta_gates(args.log_decay, args.beta);
  check(args.workspace.bytes >= delta_rule_workspace(stream.device(), args.heads, args.qkv.dtype, tokens),
        "delta_rule: the workspace is smaller than delta_rule_workspace says");
  OCTET_DISPATCH(stream, delta_rule, args);
}

void delta_rule_backward(Stream& stream, const DeltaRuleBackwardArgs& args) {
  check_delta_qkv(args.qkv, args.heads);
  const std::int64_t tokens = args.qkv.rows;
  check(are_documents(args.documents, tokens),
        "delta_rule_backward: the documents must describe the tokens of qkv");
  check(is_of(args.d_out, args.qkv.dtype, tokens, args.heads.values()),
        "delta_rule_backward: d_out must be [tokens, heads.values()] of qkv's dtype");
  check(is_matrix(args.d_qkv) && same_form(args.d_qkv, args.qkv),
        "delta_rule_backward: d_qkv must have the shape and dtype of qkv");
  if (tokens == 0) return;
  check_delta_gates(args.log_decay, args.beta);
  check(args.d_log_decay != nullptr && args.d_beta != nullptr,
        "delta_rule_backward: d_log_decay and d_beta are missing");
  check(args.states != nullptr || delta_states(tokens) == 0,
        "delta_rule_backward: the states of delta_rule() are missing");
  check(args.workspace.bytes >= delta_rule_workspace(stream.device(), args.heads, args.qkv.dtype, tokens),
        "delta_rule_backward: the workspace is smaller than delta_rule_workspace says");
  OCTET_DISPATCH(stream, delta_rule_backward, args);
}

void cached_delta_rule(Stream& stream, const CachedDeltaRuleArgs& args) {
  check_delta_qkv(args.qkv, args.heads);
  check(is_of(args.out, args.qkv.dtype, args.qkv.rows, args.heads.values()),
        "cached_delta_rule: out must be [tokens, heads.values()] of qkv's dtype");
  if (args.qkv.rows == 0) return;
  check_delta_gates(args.log_decay, args.beta);
  check(args.slots != nullptr && args.positions != nullptr && args.states != nullptr,
        "cached_delta_rule: slots, positions and states are needed");
  OCTET_DISPATCH(stream, cached_delta_rule, args);
}

std::size_t delta_rule_workspace(const Device& device, const DeltaHeads& heads, DType dtype,
                                 std::int64_t tokens) {
  check(are_delta_heads(heads) && tokens >= 0,
        "delta_rule_workspace: the heads must be heads of delta_rule(), and tokens must not be negative");
  check(dtype == DType::f32 || dtype == DType::bf16, "delta_rule_workspace: T is f32 or bf16");
  if (device.stands_for() != DeviceKind::cuda) return cpu::delta_rule_workspace(heads);
  const std::size_t there = cuda::delta_scratch(heads, dtype, tokens).bytes;
  return device.kind() == DeviceKind::cpu ? std::max(there, cpu::delta_rule_workspace(heads)) : there;
}

}  // namespace octet::ops
