#include "layers/linear.h"

#include "layers/work.h"
#include "octet/device/profile.h"
#include "octet/ops/embedding.h"

namespace octet::model {
namespace {

std::vector<Part> named(const std::vector<Part>& modules, const std::string& suffix) {
  std::vector<Part> parts = modules;
  for (Part& part : parts) part.name += suffix;
  return parts;
}

}  // namespace

Linear::Linear(GroupBuilder& group, const LinearShape& shape)
    : name_(shape.name),
      title_(shape.title),
      kept_values_(shape.kept_values),
      weight_(group.matrix(shape.name, shape.inputs, named(shape.modules, ".weight"),
                           {.init_std = shape.init_std, .fp8 = true, .gradient_by_product = true})) {
  if (shape.bias) {
    bias_ = group.vector(std::string(shape.name) + "_bias", named(shape.modules, ".bias"), InitRule::zeros);
  }
}

LinearLayer Linear::facts() const {
  return {.name = name_,
          .title = title_,
          .rows = weight_.rows(),
          .cols = weight_.cols(),
          .fp8 = true,
          .cast_alone = kept_values_};
}

std::vector<Operation> Linear::operations(std::int64_t tokens, const Repeats& forward_again) const {
  return products_of(facts(), tokens, forward_again);
}

void Linear::reserve(BlockBuffers& buffers, const Common& common) {
  input_.reserve(buffers, common, weight_.cols(), kept_values_);
}

Wanted Linear::wanted_gradient(const Call& call, const ops::Matrix& values) const {
  const bool exist = bias_ || output_gradient_.needs_values(call.common);
  return {.values = exist ? values : ops::Matrix{}, .quantize = output_gradient_.wanted(call)};
}

void Linear::forward(const Call& call, const ops::Matrix& out, const ops::ConstMatrix& addend) const {
  const ProfileLabel label(call.stream, name_);
  weight_.forward(call, input_.operand(), bias_.in(call.parameters), addend, out);
}

void Linear::backward(const Call& call, const ops::ConstMatrix& d_output,
                      std::span<const ops::Operand> operands, const ops::Matrix& d_input) const {
  const ProfileLabel label(call.stream, name_);
  // The weight's gradient first, for the input's may take the input's place.
  weight_.add_gradient(call, operands, input_.operand());
  weight_.backward(call, operands, d_input);
  float* const d_bias = bias_.in(*call.gradients);
  if (d_bias != nullptr) ops::bias_backward(call.stream, d_output, d_bias);
}

}  // namespace octet::model
