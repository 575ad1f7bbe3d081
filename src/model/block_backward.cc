// One block, backward, in the reverse order of block_forward.cc.
#include "core.h"
#include "octet/base/error.h"
#include "octet/ops/attention.h"
#include "octet/ops/embedding.h"
#include "octet/ops/normed_rope.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::model {

void Transformer::Impl::backward_linear(Stream& stream, std::size_t block, Linear linear,
                                        const GroupParameters& parameters, const GroupGradients& gradients,
                                        const ops::ConstMatrix& d_output,
                                        std::span<const ops::Operand> d_operands,
                                        const ops::Matrix& d_input) {
  const ProfileLabel label(stream, kLinearNames[linear]);
  const auto weights = weights_of(stream, block, linear, parameters, ops::Product::dgrad);
  check(weights.size() == d_operands.size(), "weights and output gradients are scaled alike");
  const ops::Matrix& d_weight = gradients.gradients[kBlockMatrices][linear];
  if (d_weight.data != nullptr) {
    const bool first =
        gradients.overwrite && layout_.groups[1].segments[kBlockMatrices].tensors[linear].gradient_by_product;
    weight_gradient(stream, block, linear, d_operands, d_weight, first);
  }
  for (std::size_t part = 0; part < weights.size(); ++part) {
    multiply(stream, place_of(block, linear),
             {.product = ops::Product::dgrad,
              .a = d_operands[part],
              .b = weights[part],
              .d = d_input,
              .accumulate = part > 0});
  }
  float* const d_bias = vector_gradient(gradients, vectors_.bias[linear]);
  if (d_bias != nullptr) ops::bias_backward(stream, d_output, d_bias);
}

void Transformer::Impl::weight_gradient(Stream& stream, std::size_t block, Linear linear,
                                        std::span<const ops::Operand> d_operands, const ops::Matrix& d_weight,
                                        bool overwrite) {
  const ops::Operand& input = blocks_[block].inputs[linear].operand;
  std::int64_t row = 0;
  for (const ops::Operand& d_operand : d_operands) {
    ops::Matrix part = d_weight;
    part.data = static_cast<std::uint8_t*>(d_weight.data) +
                static_cast<std::size_t>(row * d_weight.ld) * size_of(d_weight.dtype);
    part.rows = d_operand.cols;
    multiply(
        stream, place_of(block, linear),
        {.product = ops::Product::wgrad, .a = d_operand, .b = input, .d = part, .accumulate = !overwrite});
    row += d_operand.cols;
  }
}

float* Transformer::Impl::vector_gradient(const GroupGradients& gradients, int index) {
  if (index < 0) return nullptr;
  return static_cast<float*>(gradients.gradients[kBlockVectors][static_cast<std::size_t>(index)].data);
}

void Transformer::Impl::backward_norm(Stream& stream, const NormBackward& norm) {
  ops::rms_norm_backward(stream, {.dy = norm.dy,
                                  .x = norm.x,
                                  .rstd = norm.rstd,
                                  .weight = norm.weight,
                                  .one_plus_weight = architecture_.one_plus_weight,
                                  .d_residual = norm.dx,
                                  .accumulate = norm.accumulate,
                                  .d_weight = norm.d_weight,
                                  .quantize = norm.into,
                                  .workspace = scratch_.workspace});
}

bool Transformer::Impl::wants_values(std::size_t block, Linear linear) const {
  return vectors_.bias[linear] >= 0 || quantizer_.needs_values(gradient_tensor(block, linear));
}

ops::QuantizeInto Transformer::Impl::fuse_gradient(std::int64_t block, Linear linear,
                                                   const PassOptions& pass) {
  if (block < 0) return {};
  return quantizer_.fuse(gradient_tensor(static_cast<std::size_t>(block), linear), scratch_.d_copy,
                         pass.record);
}

ops::QuantizeInto Transformer::Impl::fuse_stream_gradient(std::int64_t block, Linear linear,
                                                          const PassOptions& pass) {
  return architecture_.sublayer_norms ? ops::QuantizeInto{} : fuse_gradient(block, linear, pass);
}

Transformer::Impl::OutputGradient Transformer::Impl::backward_output(
    Stream& stream, std::size_t block, Linear linear, const GroupParameters& parameters,
    const GroupGradients& gradients, std::int64_t tokens, const PassOptions& pass) {
  const BlockActivations& b = blocks_[block];
  // Without a norm between, the gradient of the stream is that of what was added to it; whoever produced it
  // was asked for its FP8 copy.
  ops::Matrix values = top(scratch_.gradient, tokens);
  if (architecture_.sublayer_norms) {
    const bool attention = linear == kOutput;
    const int norm = attention ? vectors_.attention_output_norm : vectors_.mlp_output_norm;
    values = top(scratch_.d_added, tokens);
    backward_norm(stream, {.dy = top(scratch_.gradient, tokens),
                           .x = top(attention ? b.attention_output : b.mlp_output, tokens),
                           .rstd = attention ? b.attention_output_rstd : b.mlp_output_rstd,
                           .weight = vector(parameters, norm),
                           .d_weight = vector_gradient(gradients, norm),
                           .dx = values,
                           .accumulate = false,
                           .into = fuse_gradient(static_cast<std::int64_t>(block), linear, pass)});
  }
  return {values, quantizer_.finish_parts(stream, gradient_tensor(block, linear), values, scratch_.d_copy,
                                          pass.record)};
}

void Transformer::Impl::rotate_back(Stream& stream, std::size_t block, const GroupParameters& parameters,
                                    const GroupGradients& gradients, const std::int32_t* positions,
                                    const ops::Matrix& d_qkv, const ops::QuantizeInto& into) {
  const BlockActivations& b = blocks_[block];
  const std::size_t rope = rope_of(block);
  if (!architecture_.qk_norm) {
    ops::rope(stream, {.qkv = d_qkv,
                       .heads = architecture_.heads,
                       .positions = positions,
                       .cosine = cosine_[rope],
                       .sine = sine_[rope],
                       .inverse = true,
                       .quantize = into,
                       .keep_values = wants_values(block, kQkv)});
    return;
  }
  ops::normed_rope_backward(stream, {.d_qkv = d_qkv,
                                     .raw = top(b.raw_heads, d_qkv.rows),
                                     .rstd = b.head_rstd,
                                     .heads = architecture_.heads,
                                     .q_weight = vector(parameters, vectors_.q_norm),
                                     .k_weight = vector(parameters, vectors_.k_norm),
                                     .one_plus_weight = architecture_.one_plus_weight,
                                     .positions = positions,
                                     .cosine = cosine_[rope],
                                     .sine = sine_[rope],
                                     .d_q_weight = vector_gradient(gradients, vectors_.q_norm),
                                     .d_k_weight = vector_gradient(gradients, vectors_.k_norm),
                                     .quantize = into,
                                     .workspace = scratch_.workspace});
}

void Transformer::Impl::remake(Stream& stream, std::size_t block, Remade what,
                               const GroupParameters& parameters, const AttentionInput& attention) {
  if (!remakes_inputs() || (what == Remade::qkv && !remakes_qkv())) return;
  const ProfileLabel label(stream, "recompute");
  const BlockActivations& b = blocks_[block];
  const std::int64_t tokens = attention.documents.tokens;
  const PassOptions pass{
      .keep = true, .recompute = true, .readers = what == Remade::qkv ? Readers::forward : Readers::backward};
  const auto norm = [&](Linear next, int weight, const ops::Matrix& x, float* rstd) {
    forward_norm(stream, block, next, vector(parameters, weight), {.residual = top(x, tokens)}, rstd, pass);
  };
  switch (what) {
    case Remade::activation:
      return activate(stream, block, tokens, pass);
    case Remade::mlp_norm:
      return norm(kGateUp, kMlpNorm, b.middle, b.mlp_rstd);
    case Remade::qkv: {
      const ops::Matrix qkv = top(b.qkv, tokens);
      norm(kQkv, kInputNorm, b.input, b.input_rstd);
      forward_linear(stream, block, kQkv, parameters, qkv);
      return rotate(stream, block, parameters, qkv, attention.positions, pass);
    }
    case Remade::attended:
      return prepare_attended(stream, block, tokens, pass);
    case Remade::input_norm:
      return norm(kQkv, kInputNorm, b.input, b.input_rstd);
  }
}

void Transformer::Impl::backward_block(Stream& stream, std::size_t block, const GroupParameters& parameters,
                                       const GroupGradients& gradients, const AttentionInput& attention,
                                       std::int64_t next_block, const PassOptions& pass) {
  BlockActivations& b = blocks_[block];
  const std::size_t layer = block + static_cast<std::size_t>(first_block_);
  const std::int64_t tokens = attention.documents.tokens;
  const auto here = static_cast<std::int64_t>(block);
  const ops::Matrix gradient = top(scratch_.gradient, tokens);
  const ops::Matrix d_normed = top(scratch_.delta, tokens);
  const precision::Fp8Copy& copy = scratch_.d_copy;
  ops::Matrix d_wide = top(scratch_.wide, tokens);

  // MLP.
  remake(stream, block, Remade::activation, parameters, attention);
  OutputGradient d_output = backward_output(stream, block, kDown, parameters, gradients, tokens, pass);
  d_wide.cols = d_wide.ld = architecture_.intermediate;
  backward_linear(stream, block, kDown, parameters, gradients, d_output.values, d_output.operands, d_wide);
  const ops::Matrix gate_up = top(b.gate_up, tokens);  // its gradient takes its place
  ops::gated_activation_backward(stream, {.gate_up = gate_up,
                                          .d_out = d_wide,
                                          .activation = architecture_.activation,
                                          .d_gate_up = wants_values(block, kGateUp) ? gate_up : ops::Matrix{},
                                          .quantize = fuse_gradient(here, kGateUp, pass)});
  std::vector<ops::Operand> d_operands =
      quantizer_.finish_parts(stream, gradient_tensor(block, kGateUp), gate_up, copy, pass.record);
  remake(stream, block, Remade::mlp_norm, parameters, attention);
  backward_linear(stream, block, kGateUp, parameters, gradients, gate_up, d_operands, d_normed);
  reduce(stream, d_normed);
  backward_norm(stream, {.dy = d_normed,
                         .x = top(b.middle, tokens),
                         .rstd = b.mlp_rstd,
                         .weight = vector(parameters, kMlpNorm),
                         .d_weight = vector_gradient(gradients, kMlpNorm),
                         .dx = gradient,
                         .into = fuse_stream_gradient(here, kOutput, pass)});

  // Attention.
  remake(stream, block, Remade::qkv, parameters, attention);
  remake(stream, block, Remade::attended, parameters, attention);
  d_output = backward_output(stream, block, kOutput, parameters, gradients, tokens, pass);
  d_wide.cols = d_wide.ld = architecture_.q_width();
  backward_linear(stream, block, kOutput, parameters, gradients, d_output.values, d_output.operands, d_wide);
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
  rotate_back(stream, block, parameters, gradients, attention.positions, d_qkv,
              fuse_gradient(here, kQkv, pass));
  d_operands = quantizer_.finish_parts(stream, gradient_tensor(block, kQkv), d_qkv, copy, pass.record);
  remake(stream, block, Remade::input_norm, parameters, attention);
  backward_linear(stream, block, kQkv, parameters, gradients, d_qkv, d_operands, d_normed);
  reduce(stream, d_normed);
  backward_norm(stream, {.dy = d_normed,
                         .x = top(b.input, tokens),
                         .rstd = b.input_rstd,
                         .weight = vector(parameters, kInputNorm),
                         .d_weight = vector_gradient(gradients, kInputNorm),
                         .dx = gradient,
                         .into = fuse_stream_gradient(next_block, kDown, pass)});
}

}  // namespace octet::model
