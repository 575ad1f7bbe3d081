#pragma once

#include <vector>

#include "layers/input_norm.h"
#include "layers/rotary.h"
#include "layers/sublayer_output.h"

namespace octet::model {

/// The first sublayer of a block: norm, queries, keys and values, rotary embedding, causal attention, output.
class Attention {
 public:
  /// `layer`: the index of the block in the model and in a KvCache.
  Attention(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);

  std::vector<Linear*> linears() { return {&qkv_, &output_.linear()}; }
  std::vector<const Linear*> linears() const { return {&qkv_, &output_.linear()}; }
  const SublayerOutput& output() const { return output_; }
  const InputNorm& norm() const { return norm_; }
  bool trained() const {
    return norm_.trained() || rotary_.trained() || qkv_.trained() || sinks_.trained() || output_.trained();
  }
  /// Sets whether the gradient of its input is needed.
  void set_passes_on(bool passes_on);
  /// Whether backward has work to do.
  bool runs_back() const { return output_.runs_back(); }
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens, std::int64_t length) const;

  /// Computes the output from the stream `before`. If `before` has a pending sum, this first writes the sum
  /// to `stream`. See SublayerOutput::forward() for `after`.
  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after);
  /// Computes the gradients of its tensors, down to the lowest trained tensor. If the input's gradient is
  /// needed, adds to the stream's gradient in the scratch. `into`: copies that the reader of it needs.
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into);

 private:
  /// Whether the gradients of queries, keys, values and sinks are needed.
  bool attends_back() const { return qkv_.runs_back() || rotary_.trained() || sinks_.trained(); }
  void attend(const Call& call) const;
  /// Adds the sinks to the result of attention.
  void add_sinks(const Call& call) const;
  void attend_back(const Call& call, const ops::Matrix& d_out) const;
  /// Computes the input of the first GEMM from the stream.
  void normalise(const Call& call, const NormInput& input, const ops::Matrix& stream);
  /// Computes rotated queries, keys and values from the stream.
  void project(const Call& call, const NormInput& before, const ops::Matrix& stream);
  /// Like project(), but as one kernel for very few tokens. Returns false and enqueues nothing if this is not
  /// possible.
  bool project_decode(const Call& call, const NormInput& before) const;
  /// Recomputes queries, keys and values from the stream if they were not kept.
  void remake_qkv(const Call& call, const ops::Matrix& stream);

  ops::Heads heads_;
  std::int64_t layer_;
  std::int64_t window_;
  float scale_, soft_cap_;
  InputNorm norm_;
  Rotary rotary_;
  Linear qkv_;
  VectorHandle sinks_;  ///< [q_heads], or none
  SublayerOutput output_;
  ops::Matrix rotated_;    ///< [tokens, qkv_width]: rotated queries and keys, and values
  ops::Matrix d_rotated_;  ///< their gradient
  float* lse_ = nullptr;   ///< [q_heads, tokens]
};

}  // namespace octet::model
