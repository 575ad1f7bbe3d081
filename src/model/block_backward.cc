// One block, backward, in the reverse order of block_forward.cc.
#include "core.h"
#include "octet/ops/attention.h"
#include "octet/ops/embedding.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::model {

void Transformer::Impl::backward_linear(Stream& stream, std::size_t block, Linear linear,
                                        const GroupParameters& parameters, const GroupGradients& gradients,
                                        const ops::ConstMatrix& d_output, const ops::Operand& d_operand,
                                        const ops::Matrix& d_input) {
  const ops::Operand& weight = parameters.weights[kBlockMatrices][linear];
  product(stream, ops::Product::dgrad, d_operand, weight, d_input);
  const ops::Matrix& d_weight = gradients.gradients[kBlockMatrices][linear];
  if (d_weight.data != nullptr) {
    const bool first =
        gradients.overwrite && layout_.groups[1].segments[kBlockMatrices].tensors[linear].gradient_by_product;
    product(stream, ops::Product::wgrad, d_operand, blocks_[block].inputs[linear].operand, d_weight, !first);
  }
  if (bias_index_[linear] < 0) return;
  const auto index = static_cast<std::size_t>(bias_index_[linear]);
  const ops::Matrix& d_bias = gradients.gradients[kBlockVectors][index];
  if (d_bias.data != nullptr) ops::bias_backward(stream, d_output, static_cast<float*>(d_bias.data));
}

void Transformer::Impl::backward_norm(Stream& stream, const ops::ConstMatrix& dy, const ops::ConstMatrix& x,
                                      const float* rstd, const ops::Operand& weight,
                                      const ops::Matrix& d_weight, bool accumulate,
                                      const ops::QuantizeInto& into) {
  ops::rms_norm_backward(stream, {.dy = dy,
                                  .x = x,
                                  .rstd = rstd,
                                  .weight = static_cast<const float*>(weight.data),
                                  .one_plus_weight = architecture_.one_plus_weight,
                                  .d_residual = top(scratch_.gradient, dy.rows),
                                  .accumulate = accumulate,
                                  .d_weight = static_cast<float*>(d_weight.data),
                                  .quantize = into,
                                  .workspace = scratch_.workspace});
}

ops::QuantizeInto Transformer::Impl::fuse_gradient(std::int64_t block, Linear linear,
                                                   const PassOptions& pass) {
  if (block < 0) return {};
  return quantizer_.fuse(gradient_tensor(static_cast<std::size_t>(block), linear), scratch_.d_copy,
                         pass.record);
}

void Transformer::Impl::backward_block(Stream& stream, std::size_t block, const GroupParameters& parameters,
                                       const GroupGradients& gradients, const AttentionInput& attention,
                                       std::int64_t next_block, const PassOptions& pass) {
  BlockActivations& b = blocks_[block];
  const std::size_t layer = block + static_cast<std::size_t>(first_block_);
  const std::int64_t tokens = attention.documents.tokens;
  const auto here = static_cast<std::int64_t>(block);
  const auto& vectors = parameters.weights[kBlockVectors];
  const auto& d_vectors = gradients.gradients[kBlockVectors];
  const ops::Matrix gradient = top(scratch_.gradient, tokens);
  const ops::Matrix d_normed = top(scratch_.delta, tokens);
  const precision::Fp8Copy& copy = scratch_.d_copy;
  ops::Matrix d_wide = top(scratch_.wide, tokens);

  // MLP. The gradient of its output is that of the stream; whoever produced it was asked for its FP8 copy.
  ops::Operand d_operand = quantizer_.finish(stream, gradient_tensor(block, kDown), gradient, copy);
  d_wide.cols = d_wide.ld = architecture_.intermediate;
  backward_linear(stream, block, kDown, parameters, gradients, gradient, d_operand, d_wide);
  const ops::Matrix gate_up = top(b.gate_up, tokens);  // its gradient takes its place
  ops::gated_activation_backward(stream, {.gate_up = gate_up,
                                          .d_out = d_wide,
                                          .activation = architecture_.activation,
                                          .d_gate_up = gate_up,
                                          .quantize = fuse_gradient(here, kGateUp, pass)});
  d_operand = quantizer_.finish(stream, gradient_tensor(block, kGateUp), gate_up, copy);
  backward_linear(stream, block, kGateUp, parameters, gradients, gate_up, d_operand, d_normed);
  reduce(stream, d_normed);
  backward_norm(stream, d_normed, top(b.middle, tokens), b.post_rstd, vectors[kPostNorm],
                d_vectors[kPostNorm], true, fuse_gradient(here, kOutput, pass));

  // Attention.
  d_operand = quantizer_.finish(stream, gradient_tensor(block, kOutput), gradient, copy);
  d_wide.cols = d_wide.ld = architecture_.q_width();
  backward_linear(stream, block, kOutput, parameters, gradients, gradient, d_operand, d_wide);
  const ops::Matrix d_qkv = top(scratch_.d_qkv, tokens);
  ops::attention_backward(stream, {.qkv = top(b.qkv, tokens),
                                   .out = top(b.inputs[kOutput].values, tokens),
                                   .d_out = d_wide,
                                   .lse = b.lse,
                                   .heads = architecture_.heads,
                                   .documents = attention.documents,
                                   .scale = static_cast<float>(architecture_.attention_scale),
                                   .soft_cap = static_cast<float>(architecture_.attention_soft_cap),
                                   .window = architecture_.blocks[layer].window,
                                   .d_qkv = d_qkv,
                                   .workspace = scratch_.workspace});
  rotate(stream, block, d_qkv, attention.positions, true, fuse_gradient(here, kQkv, pass));
  d_operand = quantizer_.finish(stream, gradient_tensor(block, kQkv), d_qkv, copy);
  backward_linear(stream, block, kQkv, parameters, gradients, d_qkv, d_operand, d_normed);
  reduce(stream, d_normed);
  backward_norm(stream, d_normed, top(b.input, tokens), b.input_rstd, vectors[kInputNorm],
                d_vectors[kInputNorm], true, fuse_gradient(next_block, kDown, pass));
}

}  // namespace octet::model
