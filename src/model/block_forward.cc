// One block, forward: norm, attention, norm, gated MLP, and norms of what both add where there are any.
#include "core.h"
#include "octet/ops/attention.h"
#include "octet/ops/gemm.h"
#include "octet/ops/normed_rope.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::model {

precision::Fp8Copy Transformer::Impl::copy_for(const SavedInput& saved, const PassOptions& pass) const {
  precision::Fp8Copy copy = saved.copy;
  if (copy.transposed == nullptr || pass.readers == Readers::all) return copy;
  (pass.readers == Readers::forward ? copy.transposed : copy.row) = nullptr;
  return copy;
}

// Products check that an operand has data, although those that read a transposed copy read it alone.
ops::Operand Transformer::Impl::with_row(ops::Operand operand, const SavedInput& saved) const {
  if (operand.data == nullptr) operand.data = saved.copy.row;
  return operand;
}

void Transformer::Impl::forward_norm(Stream& stream, std::size_t block, Linear next, const float* weight,
                                     const NormInput& input, float* rstd, const PassOptions& pass) {
  SavedInput& saved = blocks_[block].inputs[next];
  // A norm works row by row: its transposed copy is turned from the other one, or scattered, which is slow.
  const precision::Fp8Copy copy = pass.readers == Readers::backward ? saved.copy : copy_for(saved, pass);
  const std::int64_t tensor = input_tensor(block, next);
  const ops::Matrix out = top(saved.values, input.residual.rows);
  ops::rms_norm(stream, {.residual = input.residual,
                         .delta = input.delta,
                         .sum = input.sum,
                         .weight = weight,
                         .eps = static_cast<float>(architecture_.norm_eps),
                         .one_plus_weight = architecture_.one_plus_weight,
                         .out = out,
                         .rstd = rstd,
                         .quantize = quantizer_.fuse(tensor, copy, pass.record)});
  ops::ConstMatrix x = out;
  x.cols = x.ld = architecture_.hidden;
  saved.operand = with_row(quantizer_.finish(stream, tensor, x, copy), saved);
}

void Transformer::Impl::rotate(Stream& stream, std::size_t block, const GroupParameters& parameters,
                               const ops::Matrix& qkv, const std::int32_t* positions,
                               const PassOptions& pass) {
  const BlockActivations& b = blocks_[block];
  const std::size_t rope = rope_of(block);
  if (!architecture_.qk_norm) {
    ops::rope(stream, {.qkv = qkv,
                       .heads = architecture_.heads,
                       .positions = positions,
                       .cosine = cosine_[rope],
                       .sine = sine_[rope]});
    return;
  }
  ops::normed_rope(stream, {.qkv = qkv,
                            .heads = architecture_.heads,
                            .q_weight = vector(parameters, vectors_.q_norm),
                            .k_weight = vector(parameters, vectors_.k_norm),
                            .eps = static_cast<float>(architecture_.norm_eps),
                            .one_plus_weight = architecture_.one_plus_weight,
                            .positions = positions,
                            .cosine = cosine_[rope],
                            .sine = sine_[rope],
                            .raw = pass.keep ? top(b.raw_heads, qkv.rows) : ops::Matrix{},
                            .rstd = pass.keep ? b.head_rstd : nullptr});
}

std::vector<ops::Operand> Transformer::Impl::weights_of(Stream& stream, std::size_t block, Linear linear,
                                                        const GroupParameters& parameters,
                                                        ops::Product product) {
  const auto weights = parameters.operands(kBlockMatrices, linear);
  const bool made =
      quantizer_.recipe().blocks() && input_tensor(block, linear) != precision::Quantizer::kPlain;
  if (!made) return {weights.begin(), weights.end()};
  const ops::Operand& w = weights.front();
  const bool turned = product == ops::Product::dgrad && ops::gemm_needs_transposed_fp8(stream.device());
  precision::Fp8Copy copy = scratch_.weight;
  (turned ? copy.row : copy.transposed) = nullptr;
  // What the cast meets is told once, of the forward pass.
  const std::int64_t told = product == ops::Product::forward
                                ? static_cast<std::int64_t>(block * kLinears + linear)
                                : precision::Quantizer::kPlain;
  return {quantizer_.weight(stream, told, ops::ConstMatrix(w.data, w.dtype, w.rows, w.cols, w.cols), copy)};
}

void Transformer::Impl::forward_linear(Stream& stream, std::size_t block, Linear linear,
                                       const GroupParameters& parameters, const ops::Matrix& out,
                                       const ops::ConstMatrix& addend) {
  const ProfileLabel label(stream, kLinearNames[linear]);
  const ops::Operand& input = blocks_[block].inputs[linear].operand;
  const float* bias = vector(parameters, vectors_.bias[linear]);
  const auto weights = weights_of(stream, block, linear, parameters, ops::Product::forward);
  std::int64_t column = 0;
  for (const ops::Operand& weight : weights) {
    const std::size_t at = static_cast<std::size_t>(column) * size_of(out.dtype);
    ops::Matrix part = out;
    part.data = static_cast<std::uint8_t*>(out.data) + at;
    ops::ConstMatrix part_of_addend = addend;
    if (addend.data != nullptr) part_of_addend.data = static_cast<const std::uint8_t*>(addend.data) + at;
    part.cols = part_of_addend.cols = weight.rows;
    multiply(stream, place_of(block, linear),
             {.product = ops::Product::forward,
              .a = input,
              .b = weight,
              .d = part,
              .addend = part_of_addend,
              .bias = bias == nullptr ? nullptr : bias + column});
    column += weight.rows;
  }
}

void Transformer::Impl::forward_output(Stream& stream, std::size_t block, Linear linear,
                                       const GroupParameters& parameters, const ops::Matrix& before,
                                       const ops::Matrix& after) {
  if (products_add()) return forward_linear(stream, block, linear, parameters, after, before);
  const BlockActivations& b = blocks_[block];
  const std::int64_t tokens = before.rows;
  const ops::Matrix added = top(scratch_.delta, tokens);
  const bool attention = linear == kOutput;
  const ops::Matrix made =
      architecture_.sublayer_norms ? top(attention ? b.attention_output : b.mlp_output, tokens) : added;
  forward_linear(stream, block, linear, parameters, made);
  reduce(stream, made);
  if (!architecture_.sublayer_norms) return;
  ops::rms_norm(stream, {.residual = made,
                         .weight = vector(parameters, attention ? vectors_.attention_output_norm
                                                                : vectors_.mlp_output_norm),
                         .eps = static_cast<float>(architecture_.norm_eps),
                         .one_plus_weight = architecture_.one_plus_weight,
                         .out = added,
                         .rstd = attention ? b.attention_output_rstd : b.mlp_output_rstd});
}

void Transformer::Impl::attend(Stream& stream, std::size_t block, const AttentionInput& attention,
                               const PassOptions& pass) {
  BlockActivations& b = blocks_[block];
  const std::size_t layer = block + static_cast<std::size_t>(first_block_);
  const std::int64_t tokens = attention.documents.tokens;
  const ops::Matrix qkv = top(b.qkv, tokens);
  const ops::Matrix out = top(b.inputs[kOutput].values, tokens);
  const auto scale = static_cast<float>(architecture_.attention_scale);
  const auto soft_cap = static_cast<float>(architecture_.attention_soft_cap);
  const std::int64_t window = architecture_.blocks[layer].window;
  if (attention.cache != nullptr) {
    const auto index = static_cast<std::int64_t>(layer);
    ops::cached_attention(stream, {.qkv = qkv,
                                   .heads = architecture_.heads,
                                   .slots = attention.slots,
                                   .positions = attention.positions,
                                   .k_cache = attention.cache->keys(index),
                                   .v_cache = attention.cache->values(index),
                                   .capacity = attention.cache->capacity(),
                                   .scale = scale,
                                   .soft_cap = soft_cap,
                                   .window = window,
                                   .out = out});
    return;
  }
  ops::attention(stream, {.qkv = qkv,
                          .heads = architecture_.heads,
                          .documents = attention.documents,
                          .scale = scale,
                          .soft_cap = soft_cap,
                          .window = window,
                          .out = out,
                          .lse = pass.keep ? b.lse : nullptr,
                          .workspace = scratch_.workspace});
}

void Transformer::Impl::prepare_attended(Stream& stream, std::size_t block, std::int64_t tokens,
                                         const PassOptions& pass) {
  SavedInput& attended = blocks_[block].inputs[kOutput];
  attended.operand =
      with_row(quantizer_.prepare(stream, input_tensor(block, kOutput), top(attended.values, tokens),
                                  copy_for(attended, pass), pass.record),
               attended);
}

void Transformer::Impl::activate(Stream& stream, std::size_t block, std::int64_t tokens,
                                 const PassOptions& pass) {
  SavedInput& activated = blocks_[block].inputs[kDown];
  const precision::Fp8Copy copy = copy_for(activated, pass);
  const std::int64_t down = input_tensor(block, kDown);
  ops::Matrix values = top(activated.values, tokens);
  ops::gated_activation(stream, {.gate_up = top(blocks_[block].gate_up, tokens),
                                 .activation = architecture_.activation,
                                 .out = values,
                                 .quantize = quantizer_.fuse(down, copy, pass.record)});
  values.cols = values.ld = architecture_.intermediate;
  activated.operand = with_row(quantizer_.finish(stream, down, values, copy), activated);
}

void Transformer::Impl::forward_block(Stream& stream, std::size_t block, const GroupParameters& parameters,
                                      const NormInput& before, const AttentionInput& attention,
                                      const PassOptions& pass) {
  BlockActivations& b = blocks_[block];
  const std::int64_t tokens = before.residual.rows;
  const ops::Matrix input = top(b.input, tokens), middle = top(b.middle, tokens);
  const ops::Matrix qkv = top(b.qkv, tokens), gate_up = top(b.gate_up, tokens);

  forward_norm(stream, block, kQkv, vector(parameters, kInputNorm), before, b.input_rstd, pass);
  forward_linear(stream, block, kQkv, parameters, qkv);
  rotate(stream, block, parameters, qkv, attention.positions, pass);
  attend(stream, block, attention, pass);
  prepare_attended(stream, block, tokens, pass);
  forward_output(stream, block, kOutput, parameters, input, middle);

  forward_norm(stream, block, kGateUp, vector(parameters, kMlpNorm), norm_input(input, middle), b.mlp_rstd,
               pass);
  forward_linear(stream, block, kGateUp, parameters, gate_up);
  activate(stream, block, tokens, pass);
  // Backward reads the MLP's output only for the norm of it.
  if (pass.recompute && !architecture_.sublayer_norms) return;
  forward_output(stream, block, kDown, parameters, middle, top(stream_after(block), tokens));
}

}  // namespace octet::model
