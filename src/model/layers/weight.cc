#include "layers/weight.h"

#include <algorithm>

#include "octet/base/error.h"

namespace octet::model {

std::vector<ops::Operand> Weight::operands(const Call& call, ops::Product product) const {
  const std::span<const ops::Operand> weights = matrix_.in(call.parameters);
  if (!call.common.recipe().blocks()) return {weights.begin(), weights.end()};
  const ops::Operand& w = weights.front();
  const bool turned = product == ops::Product::dgrad && ops::gemm_needs_transposed_fp8(call.stream.device());
  precision::Fp8Copy copy = call.common.scratch.weight;
  (turned ? copy.row : copy.transposed) = nullptr;
  const ops::ConstMatrix values(w.data, w.dtype, w.rows, w.cols, w.cols);
  return {call.common.quantizer.weight(call.stream, values, copy)};
}

void Weight::forward(const Call& call, const ops::Operand& input, const float* bias,
                     const ops::ConstMatrix& addend, const ops::Matrix& out) const {
  const auto weights = operands(call, ops::Product::forward);
  count(call, ops::Product::forward, input, weights.front());
  std::int64_t column = 0;
  for (const ops::Operand& weight : weights) {
    const std::size_t at = static_cast<std::size_t>(column) * size_of(out.dtype);
    ops::Matrix part = out;
    part.data = static_cast<std::uint8_t*>(out.data) + at;
    ops::ConstMatrix part_of_addend = addend;
    if (addend.data != nullptr) part_of_addend.data = static_cast<const std::uint8_t*>(addend.data) + at;
    part.cols = part_of_addend.cols = weight.rows;
    multiply(call, {.product = ops::Product::forward,
                    .a = input,
                    .b = weight,
                    .d = part,
                    .addend = part_of_addend,
                    .bias = bias == nullptr ? nullptr : bias + column});
    column += weight.rows;
  }
}

void Weight::backward(const Call& call, std::span<const ops::Operand> d_output,
                      const ops::Matrix& d_input) const {
  const auto weights = operands(call, ops::Product::dgrad);
  check(weights.size() == d_output.size(), "weights and output gradients are scaled alike");
  count(call, ops::Product::dgrad, d_output.front(), weights.front());
  for (std::size_t part = 0; part < weights.size(); ++part) {
    multiply(call, {.product = ops::Product::dgrad,
                    .a = d_output[part],
                    .b = weights[part],
                    .d = d_input,
                    .accumulate = part > 0});
  }
}

void Weight::add_gradient(const Call& call, std::span<const ops::Operand> d_output,
                          const ops::Operand& input) const {
  const ops::Matrix& d_weight = matrix_.in(*call.gradients);
  if (d_weight.data == nullptr) return;
  count(call, ops::Product::wgrad, d_output.front(), input);
  std::int64_t row = 0;
  for (const ops::Operand& d_part : d_output) {
    ops::Matrix part = d_weight;
    part.data = static_cast<std::uint8_t*>(d_weight.data) +
                static_cast<std::size_t>(row * d_weight.ld) * size_of(d_weight.dtype);
    part.rows = d_part.cols;
    multiply(call, {.product = ops::Product::wgrad,
                    .a = d_part,
                    .b = input,
                    .d = part,
                    .accumulate = !matrix_.overwrites(*call.gradients)});
    row += d_part.cols;
  }
}

std::size_t Weight::workspace(const Device& device, const Common& common) const {
  const bool fp8 = common.recipe().fp8();
  ProductShape shape{.rows = common.options.max_tokens, .out = rows(), .in = cols(), .fp8 = fp8};
  std::size_t bytes = product_workspace(device, common, shape);
  if (!fp8) return bytes;
  for (const std::int64_t columns : scaled_columns(common.recipe())) {
    shape.out = columns;
    bytes = std::max(bytes, product_workspace(device, common, shape));
  }
  return bytes;
}

}  // namespace octet::model
