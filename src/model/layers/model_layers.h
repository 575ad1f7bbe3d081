#pragma once

#include <string>
#include <vector>

#include "layers/block.h"
#include "layers/embedding.h"
#include "layers/head.h"
#include "octet/model/build.h"

namespace octet::model {

/// All layers of a model. Constructing them declares every tensor; buffers are reserved by who runs them.
class ModelLayers {
 public:
  explicit ModelLayers(const Architecture& architecture) : ModelLayers(architecture, ParameterLayout{}) {}

  /// What the layers declared.
  const ParameterLayout& layout() const { return layout_; }
  Embedding& embedding() { return embedding_; }
  Block& block(std::int64_t layer) { return blocks_[static_cast<std::size_t>(layer)]; }
  Head& head() { return head_; }
  const Embedding& embedding() const { return embedding_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const Head& head() const { return head_; }

  /// The linear layers of blocks [first, last), those of equal name and shape as one.
  std::vector<LinearLayer> linear_layers(int first, int last) const;
  /// Operands of the linear layers of blocks [first, last) for a quantizer, each layer told which are its
  /// own: block by block first the inputs, then the output gradients, which is the order of scales in
  /// checkpoints.
  std::vector<precision::QuantizedTensor> quantized_tensors(const precision::Recipe& recipe, int first,
                                                            int last);
  /// Names of the weights of blocks [first, last) that products make for themselves (with scales of blocks),
  /// each told which is its own.
  std::vector<std::string> cast_weights(const precision::Recipe& recipe, int first, int last);

 private:
  ModelLayers(const Architecture& architecture, ParameterLayout layout);
  /// Tells every layer whether anything below it is trained.
  void end_backward();

  ParameterLayout layout_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  Head head_;
};

}  // namespace octet::model
