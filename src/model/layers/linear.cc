#include "layers/linear.h"

#include <algorithm>

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
      trained_(group.trains_weights()),
      weight_(group.matrix(shape.name, shape.inputs, named(shape.modules, ".weight"),
                           {.init_std = shape.init_std, .fp8 = true, .gradient_by_product = true})),
      adapters_(group, shape.inputs, shape.modules) {
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
  std::vector<Operation> all = products_of(facts(), tokens, forward_again);
  if (!trained_) all.pop_back();  // the weight's gradient
  append(all, adapters_.operations(tokens, forward_again));
  return all;
}

void Linear::reserve(BlockBuffers& buffers, const Common& common) {
  // Adapters read the values, of which an FP8 recipe keeps none.
  const bool fp8 = common.recipe().fp8();
  input_.reserve(buffers, common, weight_.cols(), kept_values_ || (fp8 && adapters_));
  adapters_.reserve(buffers, common);
}

std::size_t Linear::workspace(const Device& device, const Common& common) const {
  return std::max(weight_.workspace(device, common), adapters_.workspace(device, common));
}

Wanted Linear::wanted_gradient(const Call& call, const ops::Matrix& values) const {
  const bool exist = bias_ || adapters_ || output_gradient_.needs_values(call.common);
  return {.values = exist ? values : ops::Matrix{}, .quantize = output_gradient_.wanted(call)};
}

void Linear::forward(const Call& call, const ops::Matrix& out, const ops::ConstMatrix& addend) const {
  const ProfileLabel label(call.stream, name_);
  weight_.forward(call, input_.operand(), bias_.in(call.parameters), addend, out);
  adapters_.forward(call, input_.values(call), out);
}

void Linear::backward(const Call& call, const ops::ConstMatrix& d_output,
                      std::span<const ops::Operand> operands, const ops::Matrix& d_input) const {
  const ProfileLabel label(call.stream, name_);
  // Those of weights first, for the input's gradient may take the input's place.
  adapters_.gradients(call, input_.values(call), d_output);
  weight_.add_gradient(call, operands, input_.operand());
  weight_.backward(call, operands, d_input);
  adapters_.add_input_gradient(call, d_input);
  float* const d_bias = bias_.in(*call.gradients);
  if (d_bias != nullptr) ops::bias_backward(call.stream, d_output, d_bias);
}

}  // namespace octet::model
