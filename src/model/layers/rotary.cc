#include "layers/rotary.h"

#include <string>

#include "octet/base/error.h"
#include "octet/ops/normed_rope.h"
#include "octet/ops/quantize.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::model {

Rotary::Rotary(GroupBuilder& group, const Architecture& a, std::int64_t layer)
    : heads_(heads_of_share(a, layer)),
      rotates_(a.block(layer).rope != kNoRope),
      rope_(rotates_ ? static_cast<std::size_t>(a.block(layer).rope) : a.ropes.size()),
      eps_(static_cast<float>(a.norm_eps)),
      rotated_(a.rotary_dim),
      interleaved_(a.interleaved_rotary),
      norm_last_(a.qk_norm_last),
      all_heads_(a.qk_norm_of_all_heads),
      one_plus_weight_(a.one_plus_weight) {
  if (!a.qk_norm) return;
  check(all_heads_ || !interleaved_, "heads with norms rotate halves");
  const std::int64_t q = all_heads_ ? heads_.q_heads : 1, k = all_heads_ ? heads_.kv_heads : 1;
  const std::string q_name = a.qk_norm_last ? "self_attn.query_layernorm" : "self_attn.q_norm";
  const std::string k_name = a.qk_norm_last ? "self_attn.key_layernorm" : "self_attn.k_norm";
  q_norm_ = group.vector("q_norm", {{q_name + ".weight", q * heads_.head_dim}}, norm_init(a));
  k_norm_ = group.vector("k_norm", {{k_name + ".weight", k * heads_.head_dim}}, norm_init(a));
}

void Rotary::reserve(BlockBuffers& buffers, const Common& common) {
  if (!normed() || !common.options.training) return;
  raw_ = buffers.matrix("activations/heads", normed_heads() * heads_.head_dim, Kept::qkv);
  rstd_ = buffers.floats("activations/norms", normed_heads(), Kept::qkv);
}

std::size_t Rotary::workspace(const Device& device, const Common& common) const {
  if (!normed() || !common.options.training) return 0;
  if (all_heads_)
    return ops::rms_norm_backward_workspace(device, common.options.max_tokens,
                                            heads_.q_heads * heads_.head_dim);
  return ops::normed_rope_backward_workspace(device, common.options.max_tokens, heads_);
}

std::vector<Operation> Rotary::operations(std::int64_t tokens, bool back) const {
  if (!rotates_ && !normed()) return {};
  const int passes = normed() && norm_last_ ? 2 : 1;
  const double values = passes * 2 * static_cast<double>(tokens * normed_heads() * heads_.head_dim);
  if (!back) return {moves(OperationKind::rotary, values, {0, 0, 0, 1})};
  return {moves(OperationKind::rotary, values, {0, 0, 1, 1}), moves_back(OperationKind::rotary, values)};
}

std::array<Rotary::AllHeads, 2> Rotary::all_heads(const Call& call, const ops::Matrix& qkv) const {
  const std::int64_t q = heads_.q_heads * heads_.head_dim, k = heads_.kv_heads * heads_.head_dim;
  const bool kept = raw_.data != nullptr;
  const ops::Matrix raw = kept ? top(raw_, call.tokens) : ops::Matrix{};
  return {{{.weight = q_norm_,
            .heads = columns_of(qkv, 0, q),
            .raw = kept ? columns_of(raw, 0, q) : raw,
            .rstd = rstd_},
           {.weight = k_norm_,
            .heads = columns_of(qkv, q, k),
            .raw = kept ? columns_of(raw, q, k) : raw,
            .rstd = kept ? rstd_ + call.tokens : nullptr}}};
}

namespace {

void copy_wanted(const Call& call, const ops::Matrix& values, const ops::QuantizeInto& into) {
  if (into.wanted()) ops::quantize(call.stream, values, into);
}

/// Rows of neighbouring documents with the same angles.
struct RowRun {
  std::int64_t begin = 0, count = 0;
  bool long_documents = false;
};

std::vector<RowRun> runs_of(const Call& call, const RotaryTable& table) {
  const bool differ = table.long_documents.cosine != nullptr;
  const ops::Documents& documents = call.attention.documents;
  // A cache has no documents. All its sequences have the angles of the longest one that fits it.
  if (!differ || call.attention.cache != nullptr)
    return {{.begin = 0, .count = call.tokens, .long_documents = differ}};
  if (documents.max_length <= table.longest_short || documents.count <= 1)
    return {{.begin = 0, .count = call.tokens, .long_documents = documents.max_length > table.longest_short}};
  check(documents.host_cu_seqlens != nullptr, "the lengths of documents are known on the host");
  std::vector<RowRun> runs;
  for (std::int64_t d = 0; d < documents.count; ++d) {
    const std::int64_t begin = documents.host_cu_seqlens[d], end = documents.host_cu_seqlens[d + 1];
    const bool is_long = end - begin > table.longest_short;
    if (runs.empty() || runs.back().long_documents != is_long)
      runs.push_back({.begin = begin, .count = 0, .long_documents = is_long});
    runs.back().count += end - begin;
  }
  return runs;
}

}  // namespace

void Rotary::rotate_apart(const Call& call, const ops::Matrix& qkv, bool inverse) const {
  const RotaryTable& t = table(call);
  const std::int64_t q = heads_.q_heads * heads_.head_dim, k = heads_.kv_heads * heads_.head_dim;
  for (const RowRun& run : runs_of(call, t)) {
    if (run.count == 0) continue;
    const ops::Matrix rows = rows_from(qkv, run.begin, run.count);
    const auto turn = [&](const ops::Matrix& part, const ops::Heads& heads,
                          const RotaryTable::Angles& angles) {
      ops::rope(call.stream, {.qkv = part,
                              .heads = heads,
                              .positions = call.attention.positions + run.begin,
                              .cosine = angles.cosine,
                              .sine = angles.sine,
                              .inverse = inverse,
                              .rotated = rotated_,
                              .interleaved = interleaved_});
    };
    const RotaryTable::Angles keys =
        run.long_documents ? t.long_documents : RotaryTable::Angles{t.cosine, t.sine};
    if (t.queries.cosine == nullptr) {
      turn(rows, heads_, keys);
      continue;
    }
    turn(columns_of(rows, 0, q), {.q_heads = heads_.q_heads, .kv_heads = 0, .head_dim = heads_.head_dim},
         t.queries);
    turn(columns_of(rows, q, k), {.q_heads = heads_.kv_heads, .kv_heads = 0, .head_dim = heads_.head_dim},
         keys);
  }
}

void Rotary::rotate(const Call& call, const ops::Matrix& qkv, bool inverse, const Wanted& wanted) const {
  if (!rotates_) return copy_wanted(call, qkv, wanted.quantize);
  const RotaryTable& t = table(call);
  if (!t.uniform()) {
    rotate_apart(call, qkv, inverse);
    return copy_wanted(call, qkv, wanted.quantize);
  }
  ops::rope(call.stream, {.qkv = qkv,
                          .heads = heads_,
                          .positions = call.attention.positions,
                          .cosine = t.cosine,
                          .sine = t.sine,
                          .inverse = inverse,
                          .quantize = wanted.quantize,
                          .keep_values = wanted.values.data != nullptr,
                          .rotated = rotated_,
                          .interleaved = interleaved_});
}

void Rotary::forward(const Call& call, const ops::Matrix& qkv) const {
  const bool keep = call.pass.keep;
  if (all_heads_) {
    for (const AllHeads& one : all_heads(call, qkv)) {
      ops::rms_norm(call.stream, {.residual = one.heads,
                                  .sum = keep ? one.raw : ops::Matrix{},
                                  .weight = one.weight.in(call.parameters),
                                  .eps = eps_,
                                  .one_plus_weight = one_plus_weight_,
                                  .out = one.heads,
                                  .rstd = keep ? one.rstd : nullptr});
    }
  }
  if (!normed() || all_heads_ || norm_last_) rotate(call, qkv, false, {.values = qkv});
  if (!normed() || all_heads_) return;
  const RotaryTable& table = table_of_norms(call);
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
                                 .rstd = keep ? rstd_ : nullptr,
                                 .rotated = rotated_});
}

bool Rotary::put_behind(const Call& call, ops::DecodeGemmArgs& of) const {
  if (normed()) return false;
  if (!rotates_) return true;
  if (rotated_ != 0 || interleaved_ || !table(call).uniform()) return false;
  of.end = ops::DecodeGemmArgs::End::rotated;
  of.heads = heads_;
  of.positions = call.attention.positions;
  of.cosine = table(call).cosine;
  of.sine = table(call).sine;
  return true;
}

void Rotary::backward_of_all_heads(const Call& call, const ops::Matrix& d_qkv, const Wanted& wanted) const {
  rotate(call, d_qkv, true, {.values = d_qkv});
  for (const AllHeads& one : all_heads(call, d_qkv)) {
    ops::rms_norm_backward(call.stream, {.dy = one.heads,
                                         .x = one.raw,
                                         .rstd = one.rstd,
                                         .weight = one.weight.in(call.parameters),
                                         .one_plus_weight = one_plus_weight_,
                                         .d_residual = one.heads,
                                         .accumulate = false,
                                         .d_weight = one.weight.in(*call.gradients),
                                         .workspace = call.common.scratch.workspace});
  }
  copy_wanted(call, d_qkv, wanted.quantize);
}

void Rotary::backward(const Call& call, const ops::Matrix& d_qkv, const Wanted& wanted) const {
  if (all_heads_) return backward_of_all_heads(call, d_qkv, wanted);
  if (!normed()) return rotate(call, d_qkv, true, wanted);
  const RotaryTable& table = table_of_norms(call);
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
                                          .quantize = norm_last_ ? ops::QuantizeInto{} : wanted.quantize,
                                          .workspace = call.common.scratch.workspace,
                                          .rotated = rotated_});
  if (norm_last_) rotate(call, d_qkv, true, wanted);
}

}  // namespace octet::model
