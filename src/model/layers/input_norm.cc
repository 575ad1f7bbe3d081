#include "layers/input_norm.h"

#include "octet/ops/quantize.h"

namespace octet::model {

InputNorm::InputNorm(GroupBuilder& group, const std::string& name, const std::string& module,
                     const Architecture& a)
    : width_(a.hidden) {
  if (a.input_norms) norm_.emplace(group, name, module, a.hidden, a);
}

void InputNorm::set_passes_on(bool passes_on) {
  passes_on_ = passes_on;
  if (norm_) norm_->set_passes_on(passes_on);
}

void InputNorm::reserve(BlockBuffers& buffers) {
  if (norm_) norm_->reserve(buffers);
}

std::size_t InputNorm::workspace(const Device& device, const Common& common) const {
  return norm_ ? norm_->workspace(device, common) : 0;
}

// Without a norm, forward adds to the stream, and backward adds to its gradient.
std::vector<Operation> InputNorm::operations(std::int64_t tokens, const Repeats& again) const {
  if (norm_) return norm_->operations(tokens, again);
  const double values = 3 * static_cast<double>(tokens) * static_cast<double>(width_);
  std::vector<Operation> all = {moves(OperationKind::norm, values, {0, 0, 0, again.back()})};
  if (runs_back()) all.push_back(moves_back(OperationKind::norm, values));
  return all;
}

void InputNorm::forward(const Call& call, const NormInput& input, const ops::Matrix& stream,
                        LinearInput& to) const {
  if (!norm_) {
    if (input.delta.data != nullptr) add(call, input);
    return to.take(call, stream);
  }
  norm_->forward(call, input, to.wanted(call, WriteOrder::rows));
  to.written(call, WriteOrder::rows);
}

bool InputNorm::put_in_front(const Call& call, ops::DecodeGemmArgs& of) const {
  return !norm_ || norm_->put_in_front(call, of);
}

void InputNorm::add(const Call& call, const NormInput& input) const {
  (norm_ ? norm_ : other_)->add(call, input);
}

void InputNorm::backward(const Call& call, const Norm::Gradient& gradient) const {
  if (norm_) return norm_->backward(call, gradient);
  add(call, {.residual = gradient.dx, .delta = gradient.dy, .sum = gradient.dx});
  const ops::QuantizeInto& into = gradient.into;
  if (into.wanted()) ops::quantize(call.stream, gradient.dx, into);
}

}  // namespace octet::model
