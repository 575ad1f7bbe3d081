#include "layers/scratch.h"

#include <algorithm>

namespace octet::model {
namespace {

/// The largest sizes that the linear layers of the blocks need.
struct Widest {
  std::int64_t inputs = 0, outputs = 0, hidden = 0;
  std::int64_t copied = 0;    ///< rows of FP8 copies
  std::int64_t weight = 0;    ///< elements
  std::int64_t scales = 0;    ///< scales of a weight by squares, in either layout
  std::int64_t adapters = 0;  ///< columns inside adapters
  std::int64_t dropped = 0;   ///< inputs of a layer with dropout
  std::int64_t scaled = 0;    ///< outputs of a layer with DoRA
  bool trained = false;       ///< a weight is trained
  bool frozen = false;        ///< a weight is frozen
  bool experts = false;       ///< a layer has experts
  bool normed = false;        ///< a block has post-norms
};

Widest widest_of(const ModelLayers& layers, BlockRange blocks, const Device& device, const Common& common) {
  Widest w;
  w.copied = common.options.max_tokens;
  for (const LinearLayer& linear : layers.linear_layers(blocks.first, blocks.last)) {
    w.inputs = std::max(w.inputs, linear.cols);
    w.outputs = std::max(w.outputs, linear.rows);
    w.weight = std::max(w.weight, linear.rows * linear.cols);
    w.scales = std::max({w.scales, ops::scale_count(ops::Scaling::squares, linear.rows, linear.cols),
                         ops::scale_count(ops::Scaling::squares, linear.cols, linear.rows)});
  }
  for (int layer = blocks.first; layer < blocks.last; ++layer) {
    const Block& block = layers.blocks()[static_cast<std::size_t>(layer)];
    w.normed = w.normed || block.normed();
    for (const Linear* linear : block.linears()) {
      w.experts = w.experts || linear->of_mixture();
      w.copied = std::max(w.copied, linear->copied_rows(device, common));
      const auto add = [&](const LowRank& adapters) {
        w.adapters = std::max(w.adapters, adapters.scratch_columns());
        if (adapters.drops()) w.dropped = std::max(w.dropped, linear->weight().cols());
        if (adapters.scales()) w.scaled = std::max(w.scaled, linear->weight().rows());
      };
      add(linear->adapters());
      std::ranges::for_each(linear->expert_adapters(), add);
      (linear->weight().trained() ? w.trained : w.frozen) = true;
    }
  }
  w.hidden = layers.head().facts().cols;
  return w;
}

// A GEMM reads only one layout of a weight, so both layouts share one buffer.
precision::Fp8Copy reserve_weight(Arena& arena, const Widest& w) {
  precision::Fp8Copy copy;
  copy.row = copy.transposed =
      arena.reserve_as<std::uint8_t>("activations/FP8 weight", static_cast<std::size_t>(w.weight));
  copy.scales = copy.transposed_scales =
      arena.reserve_as<float>("activations/FP8 weight", static_cast<std::size_t>(w.scales));
  return copy;
}

}  // namespace

void reserve_scratch(Arena& arena, const ModelLayers& layers, BlockRange blocks, Common& common) {
  const Widest w = widest_of(layers, blocks, arena.device(), common);
  const std::int64_t tokens = common.options.max_tokens;
  const auto matrix = [&](const char* name, std::int64_t cols) {
    return ops::Matrix{.data = arena.reserve(name, bytes_of(tokens, cols, common.dtype)),
                       .dtype = common.dtype,
                       .rows = tokens,
                       .cols = cols,
                       .ld = cols};
  };
  const auto copy = [&](const char* name, std::int64_t cols, bool transposed) {
    return take_copy({.rows = w.copied, .cols = cols, .transposed = transposed, .scaling = common.scaling()},
                     [&](std::size_t bytes) { return arena.reserve(name, bytes); });
  };
  Scratch& scratch = common.scratch;
  const bool fp8 = common.recipe().fp8(), transposes = common.quantizer.transposes();
  scratch.delta = matrix("activations/scratch", w.hidden);
  scratch.wide = matrix("activations/scratch", w.inputs);
  // Only wgrad GEMMs read transposed copies of inputs and gradients.
  const bool transposed = transposes && w.trained;
  if (fp8 && (transposed || w.frozen || w.experts || common.remakes_inputs())) {
    scratch.x_copy =
        copy("activations/FP8 scratch", w.inputs, transposed && (w.experts || common.remakes_inputs()));
  }
  if (common.recipe().blocks()) scratch.weight = reserve_weight(arena, w);
  if (!common.options.training) return;
  scratch.gradient = matrix("activations/gradients", w.hidden);
  if (w.adapters > 0) scratch.low_rank = matrix("activations/gradients", w.adapters);
  if (w.dropped > 0) scratch.dropped = matrix("activations/scratch", w.dropped);
  if (w.scaled > 0) scratch.scaled = matrix("activations/gradients", w.scaled);
  if (w.normed) scratch.d_added = matrix("activations/gradients", w.hidden);
  if (fp8) scratch.d_copy = copy("activations/FP8 gradients", w.outputs, transposed);
}

}  // namespace octet::model
