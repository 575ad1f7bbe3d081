#include "layers/pass.h"

#include <algorithm>

namespace octet::model {

void multiply(const Call& call, const ops::GemmArgs& args) {
  ops::GemmArgs whole = args;
  whole.fixed_order = call.common.options.fixed_order;
  // Forward sums lose less than an activation does when it becomes FP8 again; those of gradients lose only
  // what the recipe allows.
  whole.fast_accumulation = args.product == ops::Product::forward || call.common.recipe().fast_gradients;
  whole.workspace = call.common.scratch.workspace;
  ops::gemm(call.stream, whole);
}

std::size_t product_workspace(const Device& device, const Common& common, const ProductShape& s) {
  const precision::Recipe& recipe = common.recipe();
  const DType x = s.fp8 ? recipe.forward_format : common.dtype;
  const DType g = s.fp8 ? recipe.gradient_format : common.dtype;
  const bool blocks = s.fp8 && recipe.blocks();
  const ops::Scaling by_rows = blocks ? ops::Scaling::rows : ops::Scaling::tensor;
  const ops::Scaling by_squares = blocks ? ops::Scaling::squares : ops::Scaling::tensor;
  const ops::Operand input{.dtype = x, .rows = s.rows, .cols = s.in, .scaling = by_rows};
  const ops::Operand weight{.dtype = x, .rows = s.out, .cols = s.in, .scaling = by_squares};
  const ops::Operand d_output{.dtype = g, .rows = s.rows, .cols = s.out, .scaling = by_rows};
  std::size_t bytes = 0;
  const auto need = [&](ops::Product product, const ops::Operand& a, const ops::Operand& b, DType dtype,
                        std::int64_t rows, std::int64_t cols) {
    const ops::Matrix d{.dtype = dtype, .rows = rows, .cols = cols, .ld = cols};
    const ops::GemmArgs args{
        .product = product, .a = a, .b = b, .d = d, .fixed_order = common.options.fixed_order};
    bytes = std::max(bytes, ops::gemm_workspace(device, args));
  };
  need(ops::Product::forward, input, weight, common.dtype, s.rows, s.out);
  if (!common.options.training) return bytes;
  need(ops::Product::dgrad, d_output, weight, common.dtype, s.rows, s.in);
  need(ops::Product::wgrad, d_output, input, common.options.gradient_dtype, s.out, s.in);
  return bytes;
}

}  // namespace octet::model
