#include "layers/block.h"

#include <algorithm>
#include <utility>

#include "layers/delta_attention.h"
#include "layers/latent_attention.h"
#include "layers/mlp/experts.h"
#include "layers/mlp/gated_mlp.h"
#include "layers/self_attention.h"
#include "octet/base/error.h"
#include "octet/device/profile.h"
#include "octet/ops/quantize.h"

namespace octet::model {
namespace {

std::unique_ptr<TokenMixer> make_mixer(GroupBuilder& group, const Architecture& a, std::int64_t layer) {
  if (a.block(layer).delta_rule) return std::make_unique<DeltaAttention>(group, a, layer);
  if (a.has_latents()) return std::make_unique<LatentAttention>(group, a, layer);
  return std::make_unique<Attention>(group, a, layer);
}

/// `shared`: the norm of attention in a parallel block; null otherwise.
std::unique_ptr<Mlp> make_mlp(GroupBuilder& group, const Architecture& a, std::int64_t layer,
                              const InputNorm* shared) {
  check(shared == nullptr || (!a.block(layer).mixes_experts && !a.sublayer_norms && a.input_norms),
        "parallel blocks have an input norm, no post-norms and no experts");
  if (a.block(layer).mixes_experts) return std::make_unique<Experts>(group, a);
  return std::make_unique<GatedMlp>(group, a, layer, shared);
}

}  // namespace

Block::Block(GroupBuilder& group, const Architecture& a, std::int64_t layer)
    : hidden_(a.hidden),
      parallel_(a.parallel),
      mixer_(make_mixer(group, a, layer)),
      mlp_(make_mlp(group, a, layer, parallel_ ? &mixer_->norm() : nullptr)),
      scale_(group, a) {
  // Readers of the output's gradient then want its values alone.
  check(!scale_ || (a.sublayer_norms && !parallel_), "blocks with output scales have post-norms");
}

void Block::set_passes_on(bool passes_on) {
  mixer_->set_passes_on(passes_on);
  mlp_->set_passes_on(parallel_ ? passes_on : mixer_->runs_back());
}

std::vector<Linear*> Block::linears() {
  std::vector<Linear*> all = mixer_->linears();
  for (Linear* linear : mlp_->linears()) all.push_back(linear);
  return all;
}

std::vector<const Linear*> Block::linears() const {
  std::vector<const Linear*> all = std::as_const(*mixer_).linears();
  for (const Linear* linear : mlp_->linears()) all.push_back(linear);
  return all;
}

void Block::reserve(BlockBuffers& buffers, const Common& common) {
  buffers.set_kept(runs_back());
  input_ = buffers.matrix("activations/block inputs", hidden_, Kept::stream);
  middle_ =
      buffers.matrix("activations/after attention", hidden_, parallel_ ? Kept::never : Kept::activations);
  mixer_->reserve(buffers, common);
  mlp_->reserve(buffers, common);
}

std::size_t Block::workspace(const Device& device, const Common& common) const {
  return std::max(mixer_->workspace(device, common), mlp_->workspace(device, common));
}

std::vector<Operation> Block::operations(std::int64_t tokens, std::int64_t length) const {
  std::vector<Operation> all = mixer_->operations(tokens, length);
  append(all, mlp_->operations(tokens));
  append(all, scale_.operations(tokens, runs_back()));
  if (runs_back()) return all;
  for (Operation& operation : all) operation.again = {};
  return all;
}

Exchanges Block::exchanges() const {
  Exchanges all = mlp_->exchanges();
  if (!runs_back()) all.again = 0;
  return all;
}

NormInput Block::sum(const Call& call, const ops::Matrix& after) const {
  if (scale_) return {.residual = after};
  return mlp_->sum(call, top(middle_, call.tokens), after);
}

void Block::forward(const Call& call, const NormInput& before, const ops::Matrix& after) {
  const ops::Matrix input = top(input_, call.tokens), middle = top(middle_, call.tokens);
  mixer_->forward(call, before, input, middle);
  if (parallel_) {
    if (mixer_->output().leaves_sum(call))
      mixer_->norm().add(call, mixer_->output().sum(call, input, middle));
    return mlp_->forward(call, {.residual = input}, middle, after);
  }
  mlp_->forward(call, mixer_->output().sum(call, input, middle), middle, after);
  if (!scale_ || after.data == nullptr) return;
  call.settle();
  settle_sum(call, after);
  scale_.apply(call, after);
}

void Block::settle(const Call& call, const ops::Matrix& after) const {
  if (!scale_) settle_sum(call, after);
}

void Block::recompute(const Call& call) {
  const ProfileLabel label(call.stream, "recompute");
  const Call again = call.again(Readers::all);
  forward(again, {.residual = top(input_, call.tokens)}, {});
}

void Block::backward(const Call& call, const ops::QuantizeInto& into) {
  if (parallel_) return backward_parallel(call, into);
  scale_.apply(call, top(call.common.scratch.gradient, call.tokens));
  mlp_->backward(call, top(middle_, call.tokens), mixer_->output().wanted(call));
  if (mixer_->runs_back()) mixer_->backward(call, top(input_, call.tokens), into);
}

// The output's gradient is the gradient of both sublayers' outputs, so the MLP adds to it last.
void Block::backward_parallel(const Call& call, const ops::QuantizeInto& into) {
  const ops::Matrix input = top(input_, call.tokens);
  if (mlp_->runs_back()) mlp_->backward(call, input, {});
  if (mixer_->runs_back()) {
    const ops::QuantizeInto wanted = mixer_->output().wanted(call);
    if (wanted.wanted()) ops::quantize(call.stream, top(call.common.scratch.gradient, call.tokens), wanted);
    mixer_->backward(call, input, {});
  }
  mlp_->pass_on(call, input, into);
}

}  // namespace octet::model
