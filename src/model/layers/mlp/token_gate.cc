#include "layers/mlp/token_gate.h"

#include <algorithm>

#include "layers/linear_operands.h"

namespace octet::model {

std::size_t TokenGate::workspace(const Device& device, const Common& common) const {
  const std::int64_t rows = common.options.max_tokens, outputs = weight_.rows();
  const ops::GemmArgs logits{.a = {.dtype = common.dtype, .rows = rows, .cols = weight_.cols()},
                             .b = {.dtype = common.dtype, .rows = outputs, .cols = weight_.cols()},
                             .d = {nullptr, DType::f32, rows, outputs, outputs},
                             .fixed_order = common.options.fixed_order};
  const std::size_t bytes = ops::gemm_workspace(device, logits);
  if (!common.options.training) return bytes;
  return std::max(bytes,
                  workspace_of_gemm(device, common,
                                    {.rows = rows, .out = outputs, .in = weight_.cols(), .pitch = outputs}));
}

void TokenGate::forward(const Call& call, const ops::Matrix& x, float* logits) const {
  const bool fixed = call.common.options.fixed_order;
  ops::gemm(call.stream, {.a = operand_of(x),
                          .b = weight_.in(call.parameters).front(),
                          .d = {logits, DType::f32, x.rows, weight_.rows(), weight_.rows()},
                          .b_stands = !fixed,
                          .fixed_order = fixed,
                          .fast_accumulation = true,
                          .workspace = call.common.scratch.workspace});
}

void TokenGate::backward(const Call& call, const ops::Matrix& x, const ops::Matrix& d_logits,
                         const ops::Matrix& d_x, bool adds) const {
  const auto multiply = [&](ops::GemmKind kind, const ops::Operand& b, const ops::Matrix& d,
                            bool accumulate) {
    ops::gemm(call.stream, {.gemm_kind = kind,
                            .a = operand_of(d_logits),
                            .b = b,
                            .d = d,
                            .accumulate = accumulate,
                            .fixed_order = call.common.options.fixed_order,
                            .workspace = call.common.scratch.workspace});
  };
  const ops::Matrix& d_weight = weight_.in(*call.gradients);
  if (d_weight.data != nullptr)
    multiply(ops::GemmKind::wgrad, operand_of(x), d_weight, !weight_.overwrites(*call.gradients));
  if (adds) multiply(ops::GemmKind::dgrad, weight_.in(call.parameters).front(), d_x, true);
}

}  // namespace octet::model
