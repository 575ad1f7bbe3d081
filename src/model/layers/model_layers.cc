#include "layers/model_layers.h"

#include <algorithm>
#include <utility>

namespace octet::model {
namespace {

/// Makes the layer of a group and appends its tensors to the layout. The group is empty unless `here`: other
/// ranks have it.
template <class Layer, class... More>
Layer declared(ParameterLayout& layout, bool here, GroupBuilder group, const More&... more) {
  Layer layer(group, more...);
  GroupSpec made = std::move(group).finish();
  if (!here) made.segments.clear();
  layout.groups.push_back(std::move(made));
  return layer;
}

GroupBuilder embedding_builder(const Architecture& a) {
  return {"embedding", {.hugging_face = a.tensor_prefix}, {ParameterKind::matrix}, a.tuning, a.share};
}

GroupBuilder block_builder(const Architecture& a, std::int64_t layer) {
  const std::string name = "layers." + std::to_string(layer);
  return {name,
          {.stored = name + ".", .hugging_face = a.tensor_prefix + name + "."},
          {ParameterKind::matrix, ParameterKind::vector},
          a.tuning,
          a.share};
}

GroupBuilder head_builder(const Architecture& a) {
  if (a.tied) return {"head", {}, {ParameterKind::vector}, a.tuning, a.share};
  return {"head", {}, {ParameterKind::matrix, ParameterKind::vector}, a.tuning, a.share};
}

std::vector<Block> declared_blocks(ParameterLayout& layout, const Architecture& a) {
  std::vector<Block> blocks;
  blocks.reserve(static_cast<std::size_t>(a.layers));
  for (std::int64_t i = 0; i < a.layers; ++i) {
    const bool here = i >= a.share.first_block(a.layers) && i < a.share.last_block(a.layers);
    blocks.push_back(declared<Block>(layout, here, block_builder(a, i), a, i));
  }
  return blocks;
}

}  // namespace

ModelLayers::ModelLayers(const Architecture& a, ParameterLayout layout)
    : layout_(std::move(layout)),
      embedding_(declared<Embedding>(layout_, a.share.first() || (a.tied && a.share.last()),
                                     embedding_builder(a), a)),
      blocks_(declared_blocks(layout_, a)),
      head_(declared<Head>(layout_, a.share.last(), head_builder(a), a)) {
  end_backward();
}

void ModelLayers::end_backward() {
  bool below = embedding_.trained();
  for (Block& block : blocks_) {
    block.set_passes_on(below);
    below = below || block.trained();
  }
  head_.set_below(embedding_.trained(), below);
}

std::vector<precision::QuantizedTensor> ModelLayers::quantized_tensors(const precision::Recipe& recipe,
                                                                       int first, int last) {
  std::vector<precision::QuantizedTensor> tensors;
  if (!recipe.fp8()) return tensors;
  const auto next = [&tensors] { return static_cast<std::int64_t>(tensors.size()); };
  for (int layer = first; layer < last; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const std::vector<Linear*> linears = block(layer).linears();
    for (Linear* linear : linears) {
      linear->input().set_tensor(next());
      tensors.push_back({prefix + linear->name() + "/input", precision::TensorRole::input});
    }
    for (Linear* linear : linears) {
      linear->output_gradient().set_tensor(next());
      tensors.push_back({prefix + linear->name() + "/output_gradient", precision::TensorRole::output_gradient,
                         linear->weight().scaled_columns(recipe)});
    }
  }
  return tensors;
}

std::vector<std::string> ModelLayers::cast_weights(const precision::Recipe& recipe, int first, int last) {
  std::vector<std::string> names;
  if (!recipe.blocks()) return names;
  for (int layer = first; layer < last; ++layer) {
    for (Linear* linear : block(layer).linears()) {
      linear->weight().set_cast(static_cast<std::int64_t>(names.size()));
      names.push_back("layers." + std::to_string(layer) + "." + linear->name() + "/weight");
    }
  }
  return names;
}

ParameterLayout build_layout(const Architecture& architecture) {
  return ModelLayers(architecture).layout();
}

std::vector<LinearLayer> ModelLayers::linear_layers(int first, int last) const {
  std::vector<LinearLayer> all;
  for (int layer = first; layer < last; ++layer) {
    for (const Linear* linear : blocks_[static_cast<std::size_t>(layer)].linears()) {
      LinearLayer one = linear->facts();
      const auto same =
          std::ranges::find_if(all, [&one](const LinearLayer& other) { return other.counts(one); });
      if (same == all.end()) {
        all.push_back(std::move(one));
      } else {
        ++same->layers;
      }
    }
  }
  return all;
}

std::vector<LinearLayer> linear_layers(const Architecture& architecture) {
  const ModelLayers layers(architecture);
  std::vector<LinearLayer> all = layers.linear_layers(0, static_cast<int>(architecture.layers));
  all.push_back(layers.head().facts());
  return all;
}

std::int64_t exchanged_bytes(std::int64_t count, DType dtype, ops::Wire wire) {
  // Messages in a narrow format begin on boundaries of 16 bytes.
  constexpr std::size_t kUnit = 16;
  if (ops::travels_as_it_lies(ops::wire_of_values(wire, dtype), dtype))
    return count * static_cast<std::int64_t>(size_of(dtype));
  return static_cast<std::int64_t>((ops::wire_bytes(wire, count) + kUnit - 1) / kUnit * kUnit);
}

std::int64_t exchanged_bytes(const Architecture& a, std::int64_t tokens, DType dtype, ops::Wire wire,
                             bool blocks_again) {
  const ModelLayers layers(a);
  const std::int64_t rows = (tokens * a.experts.taken + a.share.expert_size - 1) / a.share.expert_size;
  const std::int64_t hidden = exchanged_bytes(rows * a.hidden, dtype, wire);
  std::int64_t bytes = 0;
  for (const Block& block : layers.blocks()) {
    const Exchanges e = block.exchanges();
    bytes += (e.rows + (blocks_again ? e.again : 0)) * hidden +
             e.weights * rows * static_cast<std::int64_t>(sizeof(float));
  }
  return bytes;
}

std::vector<Operation> operations(const Architecture& architecture, std::int64_t tokens,
                                  std::int64_t length) {
  const ModelLayers layers(architecture);
  std::vector<Operation> all = layers.embedding().operations(tokens);
  for (const Block& block : layers.blocks()) append(all, block.operations(tokens, length));
  append(all, layers.head().operations(tokens));
  return all;
}

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
  bool adds_later = false;    ///< a block has post-norms, or is parallel
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
    w.adds_later = w.adds_later || block.normed() || block.parallel();
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
  if (w.adds_later) scratch.d_added = matrix("activations/gradients", w.hidden);
  if (fp8) scratch.d_copy = copy("activations/FP8 gradients", w.outputs, transposed);
}

}  // namespace octet::model
