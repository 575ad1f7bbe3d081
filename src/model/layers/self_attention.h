#pragma once

#include <vector>

#include "layers/head_attention.h"
#include "layers/output_gates.h"
#include "layers/rotary.h"
#include "layers/token_mixer.h"
#include "layers/value_norm.h"

namespace octet::model {

/// Causal attention as the first sublayer: norm, queries, keys and values, rotary embedding, attention, gates
/// of its output if the architecture has them, output.
class Attention final : public TokenMixer {
 public:
  /// `layer`: the index of the block in the model and in a KvCache.
  Attention(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);

  std::vector<Linear*> linears() override { return {&qkv_, &output_.linear()}; }
  std::vector<const Linear*> linears() const override { return {&qkv_, &output_.linear()}; }
  const SublayerOutput& output() const override { return output_; }
  const InputNorm& norm() const override { return norm_; }
  bool trained() const override {
    return norm_.trained() || rotary_.trained() || qkv_.trained() || heads_.trained() || output_.trained();
  }
  void set_passes_on(bool passes_on) override;
  void reserve(BlockBuffers& buffers, const Common& common) override;
  std::size_t workspace(const Device& device, const Common& common) const override;
  std::vector<Operation> operations(std::int64_t tokens, std::int64_t length) const override;

  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after) override;
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) override;

 private:
  /// Whether the gradients of queries, keys, values and sinks are needed.
  bool attends_back() const { return qkv_.runs_back() || rotary_.trained() || heads_.trained(); }
  /// The output of attention, before gates.
  ops::Matrix attended(const Call& call) const;
  /// Writes the input of the last GEMM.
  void finish_heads(const Call& call);
  /// Computes the input of the first GEMM from the stream.
  void normalise(const Call& call, const NormInput& input, const ops::Matrix& stream);
  /// Computes rotated queries, keys and values from the stream.
  void project(const Call& call, const NormInput& before, const ops::Matrix& stream);
  /// Like project(), but as one kernel for very few tokens. Returns false and enqueues nothing if this is not
  /// possible.
  bool project_decode(const Call& call, const NormInput& before) const;
  /// Computes the gradient of the first GEMM's output from the gradient of rotated queries and keys, and of
  /// values, in d_qkv. Returns it, and its FP8 operands in `operands`.
  ops::Matrix backward_to_projection(const Call& call, const ops::Matrix& d_qkv,
                                     std::vector<ops::Operand>& operands);
  /// Recomputes queries, keys and values from the stream if they were not kept.
  void remake_qkv(const Call& call, const ops::Matrix& stream);

  InputNorm norm_;
  Rotary rotary_;
  Linear qkv_;
  OutputGates gates_;
  ValueNorm value_norm_;
  HeadAttention heads_;
  SublayerOutput output_;
  ops::Matrix rotated_;    ///< [tokens, qkv_width]: rotated queries and keys, and values
  ops::Matrix d_rotated_;  ///< their gradient
};

}  // namespace octet::model
