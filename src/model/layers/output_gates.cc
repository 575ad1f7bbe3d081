#include "layers/output_gates.h"

#include "layers/work_list.h"
#include "octet/ops/output_gate.h"

namespace octet::model {

OutputGates::OutputGates(const Architecture& a) : exist_(a.output_gate), heads_(heads_of_share(a)) {}

void OutputGates::reserve(BlockBuffers& buffers, const Common& common) {
  if (!exist_) return;
  const std::int64_t out = heads_.q_heads * heads_.head_dim, all = heads_.qkv_width() + out;
  projected_ = buffers.matrix("activations/qkv", all, Kept::qkv);
  attended_ = buffers.matrix("activations/attention", out, Kept::activations);
  if (common.options.training) d_projected_ = buffers.matrix("activations/gradients", all, Kept::never);
}

// Forward copies queries, keys and values, and reads outputs and gates. Backward also reads and writes their
// gradients.
std::vector<Operation> OutputGates::operations(std::int64_t tokens, bool back) const {
  if (!exist_) return {};
  const auto t = static_cast<double>(tokens), wide = static_cast<double>(heads_.qkv_width());
  const auto out = static_cast<double>(heads_.q_heads * heads_.head_dim);
  std::vector<Operation> all = {moves(OperationKind::activation, t * 2 * wide, {0, 0, 1, 1}),
                                moves(OperationKind::activation, t * 3 * out, {0, 1, 1, 1})};
  if (back) all.push_back(moves_back(OperationKind::activation, t * (2 * wide + 5 * out)));
  return all;
}

void OutputGates::take(const Call& call, const ops::Matrix& qkv) const {
  ops::take_output_gates(call.stream, {.projected = projected(call), .heads = heads_, .qkv = qkv});
}

void OutputGates::apply(const Call& call, const Wanted& out) const {
  ops::output_gate(call.stream, {.attended = attended(call),
                                 .projected = projected(call),
                                 .heads = heads_,
                                 .out = out.values,
                                 .quantize = out.quantize});
}

void OutputGates::backward(const Call& call, const ops::Matrix& d_out) const {
  ops::output_gate_backward(call.stream, {.attended = attended(call),
                                          .projected = projected(call),
                                          .d_out = d_out,
                                          .heads = heads_,
                                          .d_attended = d_out,
                                          .d_projected = top(d_projected_, call.tokens)});
}

ops::Matrix OutputGates::put(const Call& call, const ops::Matrix& d_qkv) const {
  const ops::Matrix d_projected = top(d_projected_, call.tokens);
  ops::put_output_gates(call.stream, {.d_qkv = d_qkv, .heads = heads_, .d_projected = d_projected});
  return d_projected;
}

}  // namespace octet::model
