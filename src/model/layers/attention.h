#pragma once

#include <vector>

#include "layers/rotary.h"
#include "layers/sublayer_output.h"

namespace octet::model {

/// The first sublayer of a block: norm, queries, keys and values, rotary embedding, causal attention, output.
class Attention {
 public:
  /// `layer`: the block's number in the model, which its keys and values have in a KvCache.
  Attention(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);

  std::vector<Linear*> linears() { return {&qkv_, &output_.linear()}; }
  std::vector<const Linear*> linears() const { return {&qkv_, &output_.linear()}; }
  const SublayerOutput& output() const { return output_; }
  bool trained() const { return norm_.trained() || rotary_.trained() || qkv_.trained() || output_.trained(); }
  /// Whether the stream's gradient is wanted in front of it.
  void set_passes_on(bool passes_on);
  /// Whether backward has anything to do.
  bool runs_back() const { return output_.runs_back(); }
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens, std::int64_t length) const;

  /// From the stream `before` (which is, or becomes, `stream`) to `after`, as SublayerOutput::forward says.
  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after);
  /// Gradients of its tensors as far down as one is trained, or, where it is wanted, that of the stream,
  /// which lies in the scratch and is added to. `into`: what its reader wants.
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into);

 private:
  /// Whether the gradients of queries, keys and values are wanted.
  bool attends_back() const { return qkv_.runs_back() || rotary_.trained(); }
  void attend(const Call& call) const;
  void attend_back(const Call& call, const ops::Matrix& d_out) const;
  /// The input of the first product, from the stream.
  void normalise(const Call& call, const NormInput& input);
  /// Queries, keys and values as attention reads them, from the stream.
  void project(const Call& call, const NormInput& before);
  /// The same of very few tokens, by one kernel; false where that cannot be, and nothing is enqueued.
  bool project_lone(const Call& call, const NormInput& before) const;
  /// Queries, keys and values from the stream once more, where they were not kept.
  void remake_qkv(const Call& call, const ops::Matrix& stream);

  ops::Heads heads_;
  std::int64_t layer_;
  std::int64_t window_;
  float scale_, soft_cap_;
  Norm norm_;
  Rotary rotary_;
  Linear qkv_;
  SublayerOutput output_;
  ops::Matrix rotated_;    ///< [tokens, qkv_width]: queries, keys and values as attention reads them
  ops::Matrix d_rotated_;  ///< their gradient
  float* lse_ = nullptr;   ///< [q_heads, tokens]
};

}  // namespace octet::model
