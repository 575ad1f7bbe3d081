#include "octet/ops/delta_inputs.h"

#include "cuda/delta_scratch.h"
#include "delta_checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {
namespace {

void check_projected(const ConstMatrix& projected, const DeltaColumns& columns) {
  check(are_delta_columns(columns),
        "delta inputs: the heads must be heads of delta_rule(), and groups must divide key_heads");
  check(is_matrix(projected) && projected.cols == columns.width(),
        "delta inputs: projected must be [tokens, columns.width()] T");
}

void check_gate_weights(const float* taps, const float* a_log, const float* dt_bias) {
  check(taps != nullptr && a_log != nullptr && dt_bias != nullptr,
        "delta inputs: taps, a_log and dt_bias are needed");
}

}  // namespace

void delta_inputs(Stream& stream, const DeltaInputsArgs& args) {
  check_projected(args.projected, args.columns);
  const std::int64_t tokens = args.projected.rows;
  check(are_documents(args.documents, tokens),
        "delta_inputs: the documents must describe the tokens of projected");
  check(is_of(args.qkv, args.projected.dtype, tokens, args.columns.heads.qkv_width()),
        "delta_inputs: qkv must be [tokens, heads.qkv_width()] of projected's dtype");
  if (tokens == 0) return;
  check_gate_weights(args.taps, args.a_log, args.dt_bias);
  check(args.log_decay != nullptr && args.beta != nullptr, "delta_inputs: log_decay and beta are missing");
  OCTET_DISPATCH(stream, delta_inputs, args);
}

void delta_inputs_backward(Stream& stream, const DeltaInputsBackwardArgs& args) {
  check_projected(args.projected, args.columns);
  const std::int64_t tokens = args.projected.rows;
  check(are_documents(args.documents, tokens),
        "delta_inputs_backward: the documents must describe the tokens of projected");
  check(is_of(args.d_qkv, args.projected.dtype, tokens, args.columns.heads.qkv_width()),
        "delta_inputs_backward: d_qkv must be [tokens, heads.qkv_width()] of projected's dtype");
  check(is_matrix(args.d_projected) && same_form(args.d_projected, args.projected),
        "delta_inputs_backward: d_projected must have the shape and dtype of projected");
  if (tokens == 0) return;
  check_gate_weights(args.taps, args.a_log, args.dt_bias);
  check(args.d_log_decay != nullptr && args.d_beta != nullptr,
        "delta_inputs_backward: d_log_decay and d_beta are missing");
  check(args.workspace.bytes >= delta_inputs_workspace(stream.device(), args.columns, tokens),
        "delta_inputs_backward: the workspace is smaller than delta_inputs_workspace says");
  OCTET_DISPATCH(stream, delta_inputs_backward, args);
}

void cached_delta_inputs(Stream& stream, const CachedDeltaInputsArgs& args) {
  check_projected(args.projected, args.columns);
  const std::int64_t tokens = args.projected.rows;
  check(is_of(args.qkv, args.projected.dtype, tokens, args.columns.heads.qkv_width()),
        "cached_delta_inputs: qkv must be [tokens, heads.qkv_width()] of projected's dtype");
  if (tokens == 0) return;
  check_gate_weights(args.taps, args.a_log, args.dt_bias);
  check(args.log_decay != nullptr && args.beta != nullptr,
        "cached_delta_inputs: log_decay and beta are missing");
  check(args.slots != nullptr && args.positions != nullptr && args.past != nullptr,
        "cached_delta_inputs: slots, positions and past are needed");
  OCTET_DISPATCH(stream, cached_delta_inputs, args);
}

std::size_t delta_inputs_workspace(const Device& device, const DeltaColumns& columns, std::int64_t tokens) {
  check(are_delta_columns(columns) && tokens >= 0,
        "delta_inputs_workspace: the heads must be heads of delta_rule(), and tokens must not be negative");
  // On a CPU, one thread adds up the sums of a channel.
  return device.stands_for() == DeviceKind::cuda ? cuda::delta_inputs_workspace(columns, tokens) : 0;
}

}  // namespace octet::ops
