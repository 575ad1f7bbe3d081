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

double exchanged_bytes(const Architecture& a, std::int64_t tokens, DType dtype, bool blocks_again) {
  const ModelLayers layers(a);
  double bytes = 0;  // per row
  for (const Block& block : layers.blocks()) {
    const Exchanges e = block.exchanges();
    const int rows = e.rows + (blocks_again ? e.again : 0);
    bytes += rows * static_cast<double>(a.hidden) * static_cast<double>(size_of(dtype)) +
             e.weights * static_cast<double>(sizeof(float));
  }
  return bytes * static_cast<double>(tokens * a.experts.taken) / a.share.expert_size;
}

std::vector<Operation> operations(const Architecture& architecture, std::int64_t tokens,
                                  std::int64_t length) {
  const ModelLayers layers(architecture);
  std::vector<Operation> all = layers.embedding().operations(tokens);
  for (const Block& block : layers.blocks()) append(all, block.operations(tokens, length));
  append(all, layers.head().operations(tokens));
  return all;
}

}  // namespace octet::model
