#include "layers/rotary.h"

#include <memory>

#include "octet/ops/normed_rope.h"
#include "octet/ops/rope.h"

namespace octet::model {

std::vector<RotaryTable> make_rotary_tables(Arena& arena, const Architecture& architecture,
                                            std::int64_t positions) {
  const std::int64_t half = architecture.heads.head_dim / 2;
  const std::size_t bytes = bytes_of(positions, half, DType::f32);
  Device& device = arena.device();
  const std::unique_ptr<Stream> stream = device.make_stream({.name = "rotary tables"});
  std::vector<RotaryTable> tables;
  for (const Rope& rope : architecture.ropes) {
    const std::vector<float> host = inverse_frequencies(rope, architecture.heads.head_dim);
    auto* frequencies = arena.reserve_as<float>("rotary tables", host.size());
    auto* cosine = static_cast<float*>(arena.reserve("rotary tables", bytes));
    auto* sine = static_cast<float*>(arena.reserve("rotary tables", bytes));
    device.copy_to_device(*stream, frequencies, host.data(), host.size() * sizeof(float));
    ops::rope_table(*stream, {.inv_freq = frequencies,
                              .factor = static_cast<float>(rope.attention_factor),
                              .positions = positions,
                              .half_dim = half,
                              .cosine = cosine,
                              .sine = sine});
    stream->synchronize();
    tables.push_back({cosine, sine});
  }
  return tables;
}

Rotary::Rotary(GroupBuilder& group, const Architecture& a, int rope)
    : heads_(heads_of_share(a)),
      rope_(static_cast<std::size_t>(rope)),
      eps_(static_cast<float>(a.norm_eps)),
      one_plus_weight_(a.one_plus_weight) {
  if (!a.qk_norm) return;
  q_norm_ = group.vector("q_norm", {{"self_attn.q_norm.weight", heads_.head_dim}}, norm_init(a));
  k_norm_ = group.vector("k_norm", {{"self_attn.k_norm.weight", heads_.head_dim}}, norm_init(a));
}

void Rotary::reserve(BlockBuffers& buffers, const Common& common) {
  if (!normed() || !common.options.training) return;
  raw_ = buffers.matrix("activations/heads", normed_heads() * heads_.head_dim, Kept::qkv);
  rstd_ = buffers.floats("activations/norms", normed_heads(), Kept::qkv);
}

std::size_t Rotary::workspace(const Device& device, const Common& common) const {
  if (!normed() || !common.options.training) return 0;
  return ops::normed_rope_backward_workspace(device, common.options.max_tokens, heads_);
}

std::vector<Operation> Rotary::operations(std::int64_t tokens, bool back) const {
  const double values = 2 * static_cast<double>(tokens * normed_heads() * heads_.head_dim);
  if (!back) return {moves(OperationKind::rotary, values, {0, 0, 0, 1})};
  return {moves(OperationKind::rotary, values, {0, 0, 1, 1}), moves_back(OperationKind::rotary, values)};
}

void Rotary::forward(const Call& call, const ops::Matrix& qkv) const {
  const RotaryTable& table = call.common.ropes[rope_];
  if (!normed()) {
    ops::rope(call.stream, {.qkv = qkv,
                            .heads = heads_,
                            .positions = call.attention.positions,
                            .cosine = table.cosine,
                            .sine = table.sine});
    return;
  }
  const bool keep = call.pass.keep;
  ops::normed_rope(call.stream, {.qkv = qkv,
                                 .heads = heads_,
                                 .q_weight = q_norm_.in(call.parameters),
                                 .k_weight = k_norm_.in(call.parameters),
                                 .eps = eps_,
                                 .one_plus_weight = one_plus_weight_,
                                 .positions = call.attention.positions,
                                 .cosine = table.cosine,
                                 .sine = table.sine,
                                 .raw = keep ? top(raw_, call.tokens) : ops::Matrix{},
                                 .rstd = keep ? rstd_ : nullptr});
}

bool Rotary::put_behind(const Call& call, ops::LoneGemmArgs& of) const {
  if (normed()) return false;
  const RotaryTable& table = call.common.ropes[rope_];
  of.end = ops::LoneGemmArgs::End::rotated;
  of.heads = heads_;
  of.positions = call.attention.positions;
  of.cosine = table.cosine;
  of.sine = table.sine;
  return true;
}

void Rotary::backward(const Call& call, const ops::Matrix& d_qkv, const Wanted& wanted) const {
  const RotaryTable& table = call.common.ropes[rope_];
  if (!normed()) {
    ops::rope(call.stream, {.qkv = d_qkv,
                            .heads = heads_,
                            .positions = call.attention.positions,
                            .cosine = table.cosine,
                            .sine = table.sine,
                            .inverse = true,
                            .quantize = wanted.quantize,
                            .keep_values = wanted.values.data != nullptr});
    return;
  }
  ops::normed_rope_backward(call.stream, {.d_qkv = d_qkv,
                                          .raw = top(raw_, call.tokens),
                                          .rstd = rstd_,
                                          .heads = heads_,
                                          .q_weight = q_norm_.in(call.parameters),
                                          .k_weight = k_norm_.in(call.parameters),
                                          .one_plus_weight = one_plus_weight_,
                                          .positions = call.attention.positions,
                                          .cosine = table.cosine,
                                          .sine = table.sine,
                                          .d_q_weight = q_norm_.in(*call.gradients),
                                          .d_k_weight = k_norm_.in(*call.gradients),
                                          .quantize = wanted.quantize,
                                          .workspace = call.common.scratch.workspace});
}

}  // namespace octet::model
