#pragma once

#include <vector>

#include "layers/token_mixer.h"
#include "octet/ops/delta_inputs.h"

namespace octet::model {

/// A gated delta rule as the first sublayer (Yang et al. 2025, arXiv:2412.06464), a form of linear attention:
/// norm, one linear layer for queries, keys, values and gates, convolution, delta rule, gated norm of each
/// head, output. Every rank has all of its heads.
class DeltaAttention final : public TokenMixer {
 public:
  /// `layer`: the index of the block in the model and in a KvCache.
  DeltaAttention(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);

  std::vector<Linear*> linears() override { return {&in_, &output_.linear()}; }
  std::vector<const Linear*> linears() const override { return {&in_, &output_.linear()}; }
  const SublayerOutput& output() const override { return output_; }
  const InputNorm& norm() const override { return norm_; }
  bool trained() const override {
    return norm_.trained() || in_.trained() || vectors_trained() || head_norm_.trained() || output_.trained();
  }
  void set_passes_on(bool passes_on) override;
  void reserve(BlockBuffers& buffers, const Common& common) override;
  std::size_t workspace(const Device& device, const Common& common) const override;
  std::vector<Operation> operations(std::int64_t tokens, std::int64_t length) const override;

  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after) override;
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) override;

 private:
  bool vectors_trained() const { return taps_.trained() || a_log_.trained() || dt_bias_.trained(); }
  /// Whether the gradients of the delta rule's inputs are needed.
  bool mixes_back() const { return in_.runs_back() || vectors_trained(); }
  void normalise(const Call& call, const NormInput& input, const ops::Matrix& stream);
  /// Computes projected_ from the stream.
  void project(const Call& call, const NormInput& before, const ops::Matrix& stream);
  /// Like project(), but as one kernel for very few tokens. Returns false and enqueues nothing if this is not
  /// possible.
  bool project_decode(const Call& call, const NormInput& before) const;
  /// Computes the inputs of the delta rule from projected_.
  void make_inputs(const Call& call) const;
  void mix(const Call& call) const;
  /// Computes the inputs of the delta rule and its result, from the state of each sequence in the cache.
  void mix_cached(const Call& call) const;
  /// Writes the gated norm of the result in the formats `out`.
  void norm_heads(const Call& call, const Wanted& out) const;
  /// Writes the input of the last GEMM.
  void finish_heads(const Call& call);
  void mix_back(const Call& call, const ops::Matrix& d_mixed) const;

  ops::DeltaColumns columns_;
  std::int64_t layer_;
  float eps_;
  InputNorm norm_;
  Linear in_;
  VectorHandle taps_, a_log_, dt_bias_;  ///< see ops::DeltaInputsArgs
  VectorHandle head_norm_;               ///< [value_dim]
  SublayerOutput output_;
  ops::Matrix projected_, d_projected_;  ///< [tokens, columns_.width()]
  ops::Matrix qkv_, d_qkv_;              ///< [tokens, qkv_width]: queries, keys and values after convolution
  float *log_decay_ = nullptr, *d_log_decay_ = nullptr;  ///< [tokens, value_heads]
  float *beta_ = nullptr, *d_beta_ = nullptr;            ///< [tokens, value_heads]
  void* states_ = nullptr;                               ///< ops::DeltaRuleArgs::states
  ops::Matrix mixed_;                                    ///< [tokens, values]: the result of the delta rule
};

}  // namespace octet::model
