#pragma once

#include <memory>
#include <vector>

#include "layers/mlp/gated_mlp.h"
#include "layers/output_scale.h"
#include "layers/token_mixer.h"

namespace octet::model {

/// A block: a token mixer (attention or a delta rule) and an MLP. Each adds its output to the residual
/// stream. In a parallel block, both read the block's input. Otherwise the MLP reads the sum after attention.
/// Blocks of a model may have different shapes, except for the width of the stream.
class Block {
 public:
  Block(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);

  bool trained() const { return mixer_->trained() || mlp_->trained(); }
  /// Sets whether the gradient of the block's input is needed, because an earlier tensor is trained.
  void set_passes_on(bool passes_on);
  /// Whether backward has work to do. Otherwise no activations are kept.
  bool runs_back() const { return mlp_->runs_back() || (parallel_ && mixer_->runs_back()); }
  /// See Mlp::take_load().
  BlockLoad take_load(LoadOf of) { return mlp_->take_load(of); }
  /// Returns the linear layers in the order of the layout.
  std::vector<Linear*> linears();
  std::vector<const Linear*> linears() const;
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  Exchanges exchanges() const;
  std::vector<Operation> operations(std::int64_t tokens, std::int64_t length) const;

  /// The buffer of the block's input, [tokens, hidden].
  const ops::Matrix& input() const { return input_; }
  /// Returns the input of the norm after the block. `after` is the buffer of the block's output.
  NormInput sum(const Call& call, const ops::Matrix& after) const;

  /// Computes the block's output from the stream `before`. If `before` has a pending sum, this first writes
  /// the sum to input(). See SublayerOutput::forward() for `after`.
  void forward(const Call& call, const NormInput& before, const ops::Matrix& after);
  /// Writes the block's output to `after` if forward() left a pending sum. For readers without a norm.
  void settle(const Call& call, const ops::Matrix& after) const;
  /// Whether its sublayers have post-norms.
  bool normed() const { return mlp_->normed(); }
  /// Whether attention and MLP read the same norm.
  bool parallel() const { return parallel_; }
  /// Recomputes all activations that backward reads, with Recompute::full.
  void recompute(const Call& call);
  /// Formats that the producer of the output's gradient must write in addition to the values.
  ops::QuantizeInto wanted(const Call& call) const { return mlp_->wanted(call); }
  /// Computes the gradients of the block's tensors. Replaces the output's gradient in the scratch by the
  /// input's gradient if that is needed. Otherwise stops at the block's lowest trained tensor. `into`: what
  /// the reader of the input's gradient needs.
  void backward(const Call& call, const ops::QuantizeInto& into);

 private:
  /// Writes the output of the MLP to `after` if it is pending there.
  void settle_sum(const Call& call, const ops::Matrix& after) const {
    mlp_->settle(call, top(middle_, call.tokens), after);
  }
  void backward_parallel(const Call& call, const ops::QuantizeInto& into);

  std::int64_t hidden_;
  bool parallel_;
  std::unique_ptr<TokenMixer> mixer_;
  std::unique_ptr<Mlp> mlp_;
  OutputScale scale_;
  ops::Matrix input_;   ///< [tokens, hidden]: the residual stream
  ops::Matrix middle_;  ///< [tokens, hidden]: the residual stream after the token mixer
};

}  // namespace octet::model
