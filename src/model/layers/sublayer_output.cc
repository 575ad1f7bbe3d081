#include "layers/sublayer_output.h"

namespace octet::model {

SublayerOutput::SublayerOutput(GroupBuilder& group, const Architecture& a, const LinearShape& linear,
                               const std::string& name, const std::string& norm)
    : sums_(a.share.sums()), linear_(group, linear) {
  if (a.sublayer_norms) norm_.emplace(group, name, norm, a.hidden, a, false);
}

void SublayerOutput::set_passes_on(bool passes_on) {
  linear_.set_passes_on(passes_on);
  if (norm_) norm_->set_passes_on(linear_.runs_back());
}

void SublayerOutput::reserve(BlockBuffers& buffers, const Common& common) {
  linear_.reserve(buffers, common);
  if (!norm_) return;
  made_ = buffers.matrix("activations/sublayer outputs", linear_.weight().rows(), Kept::activations);
  norm_->reserve(buffers);
}

std::vector<Operation> SublayerOutput::operations(std::int64_t tokens, const Repeats& again) const {
  std::vector<Operation> all = linear_.operations(tokens, again);
  if (norm_) append(all, norm_->operations(tokens, {0, 0, 0, 1}));
  return all;
}

ops::Matrix SublayerOutput::made(const Call& call) const {
  return top(norm_ ? made_ : call.common.scratch.delta, call.tokens);
}

bool SublayerOutput::sums_add(const Call& call) const {
  return sums_ && !norm_ && call.common.options.partial_sums->adds(made(call));
}

void SublayerOutput::finish_made(const Call& call, const ops::Matrix& before,
                                 const ops::Matrix& after) const {
  if (sums_add(call)) return reduce_and_add(call, linear_.name(), made(call), before, after);
  if (sums_) reduce_partial(call, linear_.name(), made(call));
  if (!norm_) return;
  const Wanted wanted{.values = top(call.common.scratch.delta, call.tokens)};
  norm_->forward(call, {.residual = made(call)}, wanted);
}

void SublayerOutput::forward(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const {
  if (!made_apart()) return linear_.forward(call, after, before);
  linear_.forward(call, made(call));
  finish_made(call, before, after);
}

ops::DecodeGemmArgs SublayerOutput::decode_args(const Call& call, const ops::ConstMatrix& x,
                                                const ops::Matrix& before, const ops::Matrix& after) const {
  if (made_apart()) return {.x = x, .y = made(call)};
  return {.x = x, .addend = before, .y = after};
}

bool SublayerOutput::takes_decode(const Call& call, const ops::ConstMatrix& x, const ops::Matrix& before,
                                  const ops::Matrix& after) const {
  return linear_.takes_decode(call, decode_args(call, x, before, after));
}

void SublayerOutput::forward_decode(const Call& call, const ops::ConstMatrix& x, const ops::Matrix& before,
                                    const ops::Matrix& after) const {
  linear_.forward_decode(call, decode_args(call, x, before, after));
  if (!made_apart()) return;
  call.settle();
  finish_made(call, before, after);
}

NormInput SublayerOutput::sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const {
  if (!leaves_sum(call)) return {.residual = after};
  return {.residual = before, .delta = top(call.common.scratch.delta, call.tokens), .sum = after};
}

// With a post-norm, the stream's gradient is not the gradient of the linear layer's output.
ops::QuantizeInto SublayerOutput::wanted(const Call& call) const {
  return norm_ || !linear_.runs_back() ? ops::QuantizeInto{} : linear_.wanted_gradient(call, {}).quantize;
}

void SublayerOutput::backward(const Call& call, const ops::Matrix& d_input) {
  const Scratch& scratch = call.common.scratch;
  ops::Matrix d_made = top(scratch.gradient, call.tokens);
  if (norm_) {
    d_made = top(scratch.d_added, call.tokens);
    norm_->backward(call, {.dy = top(scratch.gradient, call.tokens),
                           .x = top(made_, call.tokens),
                           .dx = d_made,
                           .accumulate = false,
                           .into = linear_.runs_back() ? linear_.wanted_gradient(call, d_made).quantize
                                                       : ops::QuantizeInto{}});
    if (!linear_.runs_back()) return;
  }
  linear_.backward(call, d_made, linear_.gradient_written(call, d_made), d_input);
}

}  // namespace octet::model
