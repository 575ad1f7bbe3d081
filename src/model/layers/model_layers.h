#pragma once

#include <string>
#include <vector>

#include "layers/block.h"
#include "layers/embedding_and_head.h"
#include "octet/model/layout.h"

namespace octet::model {

/// All layers of a model. The constructor declares all tensors. The core reserves the buffers.
class ModelLayers {
 public:
  explicit ModelLayers(const Architecture& architecture) : ModelLayers(architecture, ParameterLayout{}) {}

  /// The layout of all declared tensors.
  const ParameterLayout& layout() const { return layout_; }
  Embedding& embedding() { return embedding_; }
  Block& block(std::int64_t layer) { return blocks_[static_cast<std::size_t>(layer)]; }
  Head& head() { return head_; }
  const Embedding& embedding() const { return embedding_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const Head& head() const { return head_; }

  /// Returns the linear layers of blocks [first, last). Layers of equal name and shape are one entry.
  std::vector<LinearLayer> linear_layers(int first, int last) const;
  /// Returns the operands of the linear layers of blocks [first, last) for a quantizer, and sets their
  /// indices in the layers. Each block has first its inputs, then its output gradients. Checkpoints store
  /// scales in this order.
  std::vector<precision::QuantizedTensor> quantized_tensors(const precision::Recipe& recipe, int first,
                                                            int last);
  /// Returns the names of the weights of blocks [first, last) that are cast for each GEMM (recipes with
  /// scales of blocks), and sets their indices in the weights.
  std::vector<std::string> cast_weights(const precision::Recipe& recipe, int first, int last);

 private:
  ModelLayers(const Architecture& architecture, ParameterLayout layout);
  /// Tells every layer whether an earlier tensor is trained.
  void end_backward();

  ParameterLayout layout_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  Head head_;
};

/// The blocks [first, last) that a core runs.
struct BlockRange {
  int first = 0;
  int last = 0;  ///< one past the last one
};

/// Reserves the buffers that all layers of these blocks share, with the largest size that a layer needs.
void reserve_scratch(Arena& arena, const ModelLayers& layers, BlockRange blocks, Common& common);

}  // namespace octet::model
