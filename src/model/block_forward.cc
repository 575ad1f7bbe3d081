// One block, forward: norm, attention, norm, gated MLP.
#include "core.h"
#include "octet/ops/attention.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::model {

void Transformer::Impl::forward_norm(Stream& stream, std::size_t block, Linear next,
                                     const ops::Operand& weight, const ops::ConstMatrix& residual,
                                     const ops::ConstMatrix& delta, const ops::Matrix& sum, float* rstd,
                                     const PassOptions& pass) {
  SavedInput& saved = blocks_[block].inputs[next];
  const std::int64_t tensor = input_tensor(block, next);
  const ops::Matrix out = top(saved.values, residual.rows);
  ops::rms_norm(stream, {.residual = residual,
                         .delta = delta,
                         .sum = delta.data != nullptr ? sum : ops::Matrix{},
                         .weight = static_cast<const float*>(weight.data),
                         .eps = static_cast<float>(architecture_.norm_eps),
                         .one_plus_weight = architecture_.one_plus_weight,
                         .out = out,
                         .rstd = rstd,
                         .quantize = quantizer_.fuse(tensor, saved.copy, pass.record)});
  ops::ConstMatrix x = out;
  x.cols = x.ld = architecture_.hidden;
  saved.operand = quantizer_.finish(stream, tensor, x, saved.copy);
}

void Transformer::Impl::rotate(Stream& stream, std::size_t block, const ops::Matrix& qkv,
                               const std::int32_t* positions, bool inverse, const ops::QuantizeInto& into) {
  const auto rope =
      static_cast<std::size_t>(architecture_.blocks[block + static_cast<std::size_t>(first_block_)].rope);
  ops::rope(stream, {.qkv = qkv,
                     .heads = architecture_.heads,
                     .positions = positions,
                     .cosine = cosine_[rope],
                     .sine = sine_[rope],
                     .inverse = inverse,
                     .quantize = into});
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

void Transformer::Impl::forward_block(Stream& stream, std::size_t block, const GroupParameters& parameters,
                                      const ops::ConstMatrix& residual, const ops::ConstMatrix& delta,
                                      const AttentionInput& attention, const PassOptions& pass) {
  BlockActivations& b = blocks_[block];
  const std::int64_t tokens = residual.rows;
  const auto& weights = parameters.weights[kBlockMatrices];
  const auto& vectors = parameters.weights[kBlockVectors];
  const ops::Matrix input = top(b.input, tokens), middle = top(b.middle, tokens);
  const ops::Matrix qkv = top(b.qkv, tokens), gate_up = top(b.gate_up, tokens);
  const ops::Matrix added = top(scratch_.delta, tokens);

  forward_norm(stream, block, kQkv, vectors[kInputNorm], residual, delta, input, b.input_rstd, pass);
  product(stream, ops::Product::forward, b.inputs[kQkv].operand, weights[kQkv], qkv, false,
          bias(parameters, kQkv));
  rotate(stream, block, qkv, attention.positions, false, {});
  attend(stream, block, attention, pass);
  SavedInput& attended = b.inputs[kOutput];
  attended.operand = quantizer_.prepare(stream, input_tensor(block, kOutput), top(attended.values, tokens),
                                        attended.copy, pass.record);
  product(stream, ops::Product::forward, attended.operand, weights[kOutput], added, false,
          bias(parameters, kOutput));
  reduce(stream, added);

  forward_norm(stream, block, kGateUp, vectors[kPostNorm], input, added, middle, b.post_rstd, pass);
  product(stream, ops::Product::forward, b.inputs[kGateUp].operand, weights[kGateUp], gate_up, false,
          bias(parameters, kGateUp));
  SavedInput& activated = b.inputs[kDown];
  const std::int64_t down = input_tensor(block, kDown);
  ops::Matrix values = top(activated.values, tokens);
  ops::gated_activation(stream, {.gate_up = gate_up,
                                 .activation = architecture_.activation,
                                 .out = values,
                                 .quantize = quantizer_.fuse(down, activated.copy, pass.record)});
  values.cols = values.ld = architecture_.intermediate;
  activated.operand = quantizer_.finish(stream, down, values, activated.copy);
  // The MLP's output is not read in backward.
  if (pass.recompute) return;
  product(stream, ops::Product::forward, activated.operand, weights[kDown], added, false,
          bias(parameters, kDown));
  reduce(stream, added);
}

}  // namespace octet::model
