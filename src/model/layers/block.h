#pragma once

#include <memory>
#include <vector>

#include "layers/attention.h"
#include "layers/mlp.h"

namespace octet::model {

/// A block: attention and MLP, each adding to the residual stream. Nothing here needs its neighbours to be
/// like it, but for the width of the stream.
class Block {
 public:
  Block(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);

  bool trained() const { return attention_.trained() || mlp_->trained(); }
  /// Whether the gradient of the stream is wanted in front of it: something below is trained.
  void set_passes_on(bool passes_on);
  /// Whether backward has anything to do. Where it has not, nothing is kept for it.
  bool runs_back() const { return mlp_->runs_back(); }
  /// See Mlp.
  std::vector<std::int64_t> take_load() { return mlp_->take_load(); }
  /// In the order of the layout.
  std::vector<Linear*> linears();
  std::vector<const Linear*> linears() const;
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens, std::int64_t length) const;

  /// Where the stream in front of the block lies, [tokens, hidden].
  const ops::Matrix& input() const { return input_; }
  /// What a norm behind the block reads, whose place for the stream is `after`.
  NormInput sum(const Call& call, const ops::Matrix& after) const;

  /// From the stream `before`, which is the input or becomes it, to `after`, as SublayerOutput::forward says.
  void forward(const Call& call, const NormInput& before, const ops::Matrix& after);
  /// Makes the stream behind the block whole in `after` where forward did not, for who reads it without a
  /// norm.
  void settle(const Call& call, const ops::Matrix& after) const;
  /// Whether norms stand between what its sublayers make and the stream.
  bool normed() const { return mlp_->normed(); }
  /// Everything that backward reads, once more, with Recompute::full.
  void recompute(const Call& call);
  /// What the producer of the gradient of the stream behind the block writes beside the values.
  ops::QuantizeInto wanted(const Call& call) const { return mlp_->wanted(call); }
  /// Gradients of its tensors, and of the stream, in the scratch: from that behind the block to that in front
  /// of it, where it is wanted, or as far down as a tensor is trained. `into`: what the reader of the latter
  /// wants.
  void backward(const Call& call, const ops::QuantizeInto& into);

 private:
  std::int64_t hidden_;
  Attention attention_;
  std::unique_ptr<Mlp> mlp_;
  ops::Matrix input_;   ///< [tokens, hidden]: the residual stream
  ops::Matrix middle_;  ///< [tokens, hidden]: the residual stream after attention
};

}  // namespace octet::model
