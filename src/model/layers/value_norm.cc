#include "layers/value_norm.h"

#include "layers/work_list.h"
#include "octet/ops/rms_norm.h"

namespace octet::model {

ValueNorm::ValueNorm(const Architecture& a, std::int64_t layer)
    : exists_(a.value_norm),
      reads_keys_(a.block(layer).keys_as_values),
      heads_(heads_of_share(a, layer)),
      eps_(static_cast<float>(a.norm_eps)) {}

void ValueNorm::reserve(BlockBuffers& buffers, const Common& common) {
  if (!exists_ || !common.options.training) return;
  if (reads_keys_) {
    d_projected_ = buffers.matrix("activations/gradients",
                                  (heads_.q_heads + heads_.kv_heads) * heads_.head_dim, Kept::never);
  }
  if (!reads_keys_) raw_ = buffers.matrix("activations/heads", heads_.kv_heads * heads_.head_dim, Kept::qkv);
  rstd_ = buffers.floats("activations/norms", heads_.kv_heads, Kept::qkv);
}

std::size_t ValueNorm::workspace(const Device& device, const Common& common) const {
  if (!exists_ || !common.options.training) return 0;
  return ops::rms_norm_backward_workspace(device, common.options.max_tokens, heads_.head_dim);
}

// Forward reads and writes the values, and backward also their gradients.
std::vector<Operation> ValueNorm::operations(std::int64_t tokens, bool back) const {
  if (!exists_) return {};
  const double values = 2 * static_cast<double>(tokens * heads_.kv_heads * heads_.head_dim);
  if (!back) return {moves(OperationKind::norm, values, {0, 0, 0, 1})};
  return {moves(OperationKind::norm, values, {0, 0, 1, 1}), moves_back(OperationKind::norm, 1.5 * values)};
}

ops::Matrix ValueNorm::value(const ops::Matrix& qkv, std::int64_t head) const {
  return columns_of(qkv, (heads_.q_heads + heads_.kv_heads + head) * heads_.head_dim, heads_.head_dim);
}

ops::Matrix ValueNorm::key(const ops::Matrix& qkv, std::int64_t head) const {
  return columns_of(qkv, (heads_.q_heads + head) * heads_.head_dim, heads_.head_dim);
}

ops::Matrix ValueNorm::projected(const ops::Matrix& qkv) const {
  if (!reads_keys_) return qkv;
  return columns_of(qkv, 0, (heads_.q_heads + heads_.kv_heads) * heads_.head_dim);
}

void ValueNorm::forward(const Call& call, const ops::Matrix& qkv) const {
  if (!exists_) return;
  const bool keep = call.pass.keep;
  const ops::Matrix raw = keep && raw_.data != nullptr ? top(raw_, call.tokens) : ops::Matrix{};
  for (std::int64_t head = 0; head < heads_.kv_heads; ++head) {
    const ops::Matrix kept =
        raw.data == nullptr ? raw : columns_of(raw, head * heads_.head_dim, heads_.head_dim);
    ops::rms_norm(call.stream, {.residual = reads_keys_ ? key(qkv, head) : value(qkv, head),
                                .sum = kept,
                                .weight = call.common.ones,
                                .eps = eps_,
                                .out = value(qkv, head),
                                .rstd = keep ? rstd(call, head) : nullptr});
  }
}

void ValueNorm::backward(const Call& call, const ops::Matrix& d_qkv, const ops::Matrix& raw_keys) const {
  if (!exists_) return;
  const ops::Matrix raw = reads_keys_ ? raw_keys : top(raw_, call.tokens);
  for (std::int64_t head = 0; head < heads_.kv_heads; ++head) {
    ops::rms_norm_backward(call.stream, {.dy = value(d_qkv, head),
                                         .x = columns_of(raw, head * heads_.head_dim, heads_.head_dim),
                                         .rstd = rstd(call, head),
                                         .weight = call.common.ones,
                                         .d_residual = reads_keys_ ? key(d_qkv, head) : value(d_qkv, head),
                                         .accumulate = reads_keys_,
                                         .workspace = call.common.scratch.workspace});
  }
}

ops::Matrix ValueNorm::put(const Call& call, const ops::Matrix& d_qkv) const {
  if (!reads_keys_) return d_qkv;
  const ops::Matrix dense = top(d_projected_, call.tokens);
  // Without an output, the kernel of norms copies rows.
  ops::rms_norm(call.stream,
                {.residual = projected(d_qkv), .sum = dense, .weight = call.common.ones, .eps = eps_});
  return dense;
}

}  // namespace octet::model
