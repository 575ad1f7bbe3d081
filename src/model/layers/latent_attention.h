#pragma once

#include <optional>
#include <vector>

#include "layers/head_attention.h"
#include "layers/latent.h"
#include "layers/rotary.h"
#include "layers/token_mixer.h"
#include "octet/ops/latent_heads.h"

namespace octet::model {

/// Multi-head latent attention as the first sublayer (DeepSeek-V2, arXiv:2405.04434): norm, one linear layer
/// for the latents of queries and of keys and values, their norms and expansions, rotary embedding of a part
/// of each head, attention, output. Queries have no latent if LatentShape::q_rank is 0. Attention runs on
/// values that are padded to the width of keys. A KV cache holds expanded keys and padded values. Every rank
/// has all heads.
class LatentAttention final : public TokenMixer {
 public:
  /// `layer`: the index of the block in the model and in a KvCache.
  LatentAttention(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);

  std::vector<Linear*> linears() override;
  std::vector<const Linear*> linears() const override;
  const SublayerOutput& output() const override { return output_; }
  const InputNorm& norm() const override { return norm_; }
  bool trained() const override;
  void set_passes_on(bool passes_on) override;
  void reserve(BlockBuffers& buffers, const Common& common) override;
  std::size_t workspace(const Device& device, const Common& common) const override;
  std::vector<Operation> operations(std::int64_t tokens, std::int64_t length) const override;

  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after) override;
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) override;

 private:
  /// Whether the gradients of queries, keys and values are needed.
  bool attends_back() const { return kv_.runs_back() || (q_ && q_->runs_back()) || rotary_.trained(); }
  /// Whether values are narrower than keys.
  bool pads() const { return sizes_.value_dim < sizes_.key_dim(); }
  /// Columns of `all`, [tokens, outputs of in_]: the queries, and the part of the keys that rotates.
  ops::Matrix queries_in(const ops::Matrix& all) const { return columns_of(all, 0, sizes_.keys()); }
  ops::Matrix rope_key_in(const ops::Matrix& all) const {
    return columns_of(all, all.cols - sizes_.rope_dim, sizes_.rope_dim);
  }
  /// The output of attention, with padding.
  ops::Matrix attended(const Call& call) const;
  /// Computes the input of the first GEMM from the stream.
  void normalise(const Call& call, const NormInput& input, const ops::Matrix& stream);
  /// Computes the latents from the stream, as one kernel for very few tokens if that is possible.
  void make_latents(const Call& call, const NormInput& before, const ops::Matrix& stream);
  /// Computes rotated queries, keys and values from the stream.
  void project(const Call& call, const NormInput& before, const ops::Matrix& stream);
  /// Writes the input of the last GEMM.
  void finish_heads(const Call& call);
  /// Computes the gradients of the latents, or of queries without a latent, and of all weights above them.
  void backward_of_latents(const Call& call, const ops::Matrix& d_latents);

  ops::LatentHeads sizes_;
  InputNorm norm_;
  Rotary rotary_;
  Linear in_;
  std::optional<Latent> q_;
  Latent kv_;
  HeadAttention heads_;
  SublayerOutput output_;
  ops::Matrix latents_, d_latents_;  ///< [tokens, outputs of in_]
  /// [tokens, sizes_.keys()], with a latent of queries, and [tokens, sizes_.expanded()]. Backward uses them
  /// for the gradients.
  ops::Matrix queries_, expanded_;
  ops::Matrix rotated_, d_rotated_;    ///< [tokens, qkv_width]: rotated queries and keys, and padded values
  ops::Matrix attended_, d_attended_;  ///< [tokens, sizes_.keys()], if values are padded
};

}  // namespace octet::model
