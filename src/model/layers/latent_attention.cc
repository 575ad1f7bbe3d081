#include "layers/latent_attention.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/device/profile.h"

namespace octet::model {
namespace {

/// Outputs of the first GEMM before the latent of keys and values.
std::int64_t query_columns(const Architecture& a) {
  return a.latent.q_rank > 0 ? a.latent.q_rank : a.latent.heads.keys();
}

LinearShape latents_shape(const Architecture& a) {
  const std::string query = a.latent.q_rank > 0 ? "self_attn.q_a_proj" : "self_attn.q_proj";
  return {
      .name = "latents",
      .title = "latents of q, k, v",
      .inputs = a.hidden,
      .modules = {{query, query_columns(a)},
                  {"self_attn.kv_a_proj_with_mqa", a.latent.kv_rank + a.latent.heads.rope_dim}},
      .bias = a.qkv_bias,
      .init_std = a.initializer_range,
      .reads_stream = !a.input_norms,
  };
}

LinearShape latent_output_shape(const Architecture& a) {
  const ops::LatentHeads& heads = a.latent.heads;
  return {.name = "output",
          .title = "attention output",
          .inputs = heads.values(),
          .modules = {{"self_attn.o_proj", a.hidden}},
          .bias = a.output_bias,
          .init_std = a.initializer_range,
          .kept_values = heads.value_dim == heads.key_dim()};  // backward of attention reads them
}

std::optional<Latent> latent_of_queries(GroupBuilder& group, const Architecture& a) {
  if (a.latent.q_rank == 0) return std::nullopt;
  return Latent(group, a, "q_latent_norm", "self_attn.q_a_layernorm", 0,
                {.name = "q_latent",
                 .title = "attention q of latents",
                 .inputs = a.latent.q_rank,
                 .modules = {{"self_attn.q_b_proj", a.latent.heads.keys()}},
                 .init_std = a.initializer_range});
}

LinearShape expansion_shape(const Architecture& a) {
  return {.name = "kv_latent",
          .title = "attention k, v of latents",
          .inputs = a.latent.kv_rank,
          .modules = {{"self_attn.kv_b_proj", a.latent.heads.expanded()}},
          .init_std = a.initializer_range};
}

}  // namespace

LatentAttention::LatentAttention(GroupBuilder& group, const Architecture& a, std::int64_t layer)
    : sizes_(a.latent.heads),
      norm_(group, "input_norm", named_or(a.names.input_norm, "input_layernorm"), a),
      rotary_(group, a, layer),
      in_(group, latents_shape(a)),
      q_(latent_of_queries(group, a)),
      kv_(group, a, "kv_latent_norm", "self_attn.kv_a_layernorm", query_columns(a), expansion_shape(a)),
      heads_(group, a, layer),
      output_(group, a, latent_output_shape(a), "attention_output_norm",
              named_or(a.names.attention_output_norm, "post_attention_layernorm")) {
  check(!a.share.sums(), "latent attention is not split among ranks");
  if (output_.norm()) norm_.set_other(*output_.norm());
}

std::vector<Linear*> LatentAttention::linears() {
  std::vector<Linear*> all = {&in_};
  if (q_) all.push_back(&q_->up());
  all.push_back(&kv_.up());
  all.push_back(&output_.linear());
  return all;
}

std::vector<const Linear*> LatentAttention::linears() const {
  std::vector<const Linear*> all = {&in_};
  if (q_) all.push_back(&q_->up());
  all.push_back(&kv_.up());
  all.push_back(&output_.linear());
  return all;
}

bool LatentAttention::trained() const {
  return norm_.trained() || rotary_.trained() || in_.trained() || (q_ && q_->trained()) || kv_.trained() ||
         heads_.trained() || output_.trained();
}

void LatentAttention::set_passes_on(bool passes_on) {
  norm_.set_passes_on(passes_on);
  in_.set_passes_on(norm_.runs_back());
  if (q_) q_->set_passes_on(in_.runs_back());
  kv_.set_passes_on(in_.runs_back());
  output_.set_passes_on(attends_back());
}

void LatentAttention::reserve(BlockBuffers& buffers, const Common& common) {
  const std::int64_t width = heads_.heads().qkv_width();
  const bool trains = common.options.training;
  norm_.reserve(buffers);
  rotary_.reserve(buffers, common);
  in_.reserve(buffers, common);
  if (q_) q_->reserve(buffers, common);
  kv_.reserve(buffers, common);
  output_.reserve(buffers, common);
  latents_ = buffers.matrix("activations/qkv", in_.weight().rows(), Kept::qkv);
  if (q_) queries_ = buffers.matrix("activations/expanded latents", sizes_.keys(), Kept::never);
  expanded_ = buffers.matrix("activations/expanded latents", sizes_.expanded(), Kept::never);
  rotated_ = buffers.matrix("activations/qkv", width, Kept::qkv);
  if (pads()) attended_ = buffers.matrix("activations/attention", sizes_.keys(), Kept::activations);
  if (trains) {
    d_latents_ = buffers.matrix("activations/gradients", in_.weight().rows(), Kept::never);
    d_rotated_ = buffers.matrix("activations/gradients", width, Kept::never);
    if (pads()) d_attended_ = buffers.matrix("activations/gradients", sizes_.keys(), Kept::never);
  }
  heads_.reserve(buffers, common);
}

std::size_t LatentAttention::workspace(const Device& device, const Common& common) const {
  return std::max({heads_.workspace(device, common), rotary_.workspace(device, common),
                   in_.workspace(device, common), q_ ? q_->workspace(device, common) : 0,
                   kv_.workspace(device, common), output_.linear().workspace(device, common),
                   common.options.training ? norm_.workspace(device, common) : 0});
}

// Work on padding is counted, because attention does it.
std::vector<Operation> LatentAttention::operations(std::int64_t tokens, std::int64_t length) const {
  // Backward recomputes only activations that it reads.
  const int inputs = in_.runs_back() ? 1 : 0, heads = attends_back() ? 1 : 0;
  const Repeats again{0, 0, heads, 1};
  const auto t = static_cast<double>(tokens);
  const double joined = t * static_cast<double>(sizes_.keys() + sizes_.expanded() + sizes_.rope_dim +
                                                heads_.heads().qkv_width());
  const double cut = t * static_cast<double>(sizes_.keys() + sizes_.values());
  std::vector<Operation> all = norm_.operations(tokens, {0, inputs, inputs + heads, 1});
  append(all, in_.operations(tokens, again));
  if (q_) append(all, q_->operations(tokens, again));
  append(all, kv_.operations(tokens, again));
  all.push_back(moves(OperationKind::activation, joined, again));
  append(all, rotary_.operations(tokens, attends_back()));
  append(all, heads_.operations(tokens, length, attends_back()));
  if (pads()) all.push_back(moves(OperationKind::activation, cut, {0, 1, 1, 1}));
  if (attends_back()) {
    all.push_back(moves_back(OperationKind::activation, joined));
    if (pads()) all.push_back(moves_back(OperationKind::activation, cut));
  }
  append(all, output_.operations(tokens, {0, 0, 0, 1}));
  return all;
}

ops::Matrix LatentAttention::attended(const Call& call) const {
  return pads() ? top(attended_, call.tokens) : output_.linear().input().values(call);
}

void LatentAttention::normalise(const Call& call, const NormInput& input, const ops::Matrix& stream) {
  norm_.forward(call, input, stream, in_.input());
}

void LatentAttention::make_latents(const Call& call, const NormInput& before, const ops::Matrix& stream) {
  const ops::Matrix latents = top(latents_, call.tokens);
  if (before.delta.data == nullptr) {  // the kernel of few tokens does not store a pending sum
    ops::DecodeGemmArgs args{.x = before.residual, .y = latents};
    if (norm_.put_in_front(call, args) && in_.takes_decode(call, args)) return in_.forward_decode(call, args);
  }
  call.settle();
  normalise(call, before, stream);
  in_.forward(call, latents);
}

void LatentAttention::project(const Call& call, const NormInput& before, const ops::Matrix& stream) {
  const ops::Matrix latents = top(latents_, call.tokens), qkv = top(rotated_, call.tokens);
  const ops::Matrix expanded = top(expanded_, call.tokens);
  make_latents(call, before, stream);
  call.settle();
  const ops::Matrix queries = q_ ? top(queries_, call.tokens) : queries_in(latents);
  if (q_) q_->forward(call, latents, queries);
  kv_.forward(call, latents, expanded);
  ops::join_latent_heads(call.stream, {.queries = queries,
                                       .expanded = expanded,
                                       .rope_key = rope_key_in(latents),
                                       .heads = sizes_,
                                       .qkv = qkv});
  rotary_.forward(call, qkv);
}

void LatentAttention::finish_heads(const Call& call) {
  LinearInput& heads = output_.linear().input();
  if (!pads()) return heads.values_written(call);
  const Wanted wanted = heads.wanted(call, WriteOrder::rows);
  ops::cut_head_values(
      call.stream,
      {.padded = attended(call), .heads = sizes_, .out = wanted.values, .quantize = wanted.quantize});
  heads.written(call, WriteOrder::rows);
}

void LatentAttention::forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                              const ops::Matrix& after) {
  project(call, before, stream);
  heads_.forward(call, top(rotated_, call.tokens), attended(call));
  const ops::Matrix heads = output_.linear().input().values(call);
  if (heads.data != nullptr && output_.takes_decode(call, heads, stream, after)) {
    if (pads()) ops::cut_head_values(call.stream, {.padded = attended(call), .heads = sizes_, .out = heads});
    return output_.forward_decode(call, heads, stream, after);
  }
  finish_heads(call);
  output_.forward(call, stream, after);
}

void LatentAttention::backward_of_latents(const Call& call, const ops::Matrix& d_latents) {
  const ops::Matrix latents = top(latents_, call.tokens), d_expanded = top(expanded_, call.tokens);
  const ops::Matrix d_queries = q_ ? top(queries_, call.tokens) : queries_in(d_latents);
  ops::split_latent_heads(call.stream, {.d_qkv = top(d_rotated_, call.tokens),
                                        .heads = sizes_,
                                        .d_queries = d_queries,
                                        .d_expanded = d_expanded,
                                        .d_rope_key = rope_key_in(d_latents)});
  kv_.backward(call, latents, d_expanded, d_latents);
  if (q_) q_->backward(call, latents, d_queries, d_latents);
}

void LatentAttention::backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) {
  const Common& common = call.common;
  if (common.remakes_inputs()) {
    const ProfileLabel label(call.stream, "recompute");
    if (common.remakes_qkv() && attends_back())
      project(call.again(Readers::forward), {.residual = stream}, stream);
    finish_heads(call.again(Readers::backward));
  }
  const ops::Matrix d_heads = narrowed(common.scratch.wide, call.tokens, sizes_.values());
  output_.backward(call, d_heads);
  if (!attends_back()) return;
  const ops::Matrix d_out = pads() ? top(d_attended_, call.tokens) : d_heads;
  if (pads()) ops::pad_head_values(call.stream, {.d_out = d_heads, .heads = sizes_, .d_padded = d_out});
  const ops::Matrix d_qkv = top(d_rotated_, call.tokens), d_latents = top(d_latents_, call.tokens);
  heads_.backward(call, top(rotated_, call.tokens), attended(call), d_out, d_qkv);
  rotary_.backward(call, d_qkv, {.values = d_qkv});
  backward_of_latents(call, d_latents);
  if (!in_.runs_back()) return;
  const auto d_operands = in_.gradient_values_written(call, d_latents);
  if (common.remakes_inputs()) {
    // The gradients of the latents have overwritten the first recomputation.
    const ProfileLabel label(call.stream, "recompute");
    normalise(call.again(Readers::backward), {.residual = stream}, stream);
  }
  const ops::Matrix d_normed = top(common.scratch.delta, call.tokens);
  in_.backward(call, d_latents, d_operands, d_normed);
  if (!norm_.runs_back()) return;
  norm_.backward(
      call, {.dy = d_normed, .x = stream, .dx = top(common.scratch.gradient, call.tokens), .into = into});
}

}  // namespace octet::model
