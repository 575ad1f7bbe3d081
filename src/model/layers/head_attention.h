#pragma once

#include <vector>

#include "layers/buffers.h"
#include "layers/group_builder.h"
#include "layers/pass.h"
#include "layers/work_list.h"

namespace octet::model {

/// Causal attention of rotated queries, keys and values, with the sinks of its heads if the architecture has
/// them. In a pass with a KV cache, it appends keys and values to the cache.
class HeadAttention {
 public:
  /// `layer`: the index of the block in the model and in a KvCache.
  HeadAttention(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);
  const ops::Heads& heads() const { return heads_; }
  bool trained() const { return sinks_.trained(); }
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  /// `back`: whether backward reaches it.
  std::vector<Operation> operations(std::int64_t tokens, std::int64_t length, bool back) const;

  /// `qkv`: [tokens, heads().qkv_width()]. `out`: [tokens, q_heads * head_dim].
  void forward(const Call& call, const ops::Matrix& qkv, const ops::Matrix& out) const;
  /// Computes the gradients of sinks and of `qkv`, which is overwritten in `d_qkv`. `out`: of forward().
  void backward(const Call& call, const ops::Matrix& qkv, const ops::Matrix& out, const ops::Matrix& d_out,
                const ops::Matrix& d_qkv) const;

 private:
  /// Adds the sinks to the result of attention.
  void add_sinks(const Call& call, const ops::Matrix& out) const;

  ops::Heads heads_;
  std::int64_t layer_;
  std::int64_t window_;
  float scale_, soft_cap_;
  VectorHandle sinks_;    ///< [q_heads], or none
  float* lse_ = nullptr;  ///< [q_heads, tokens]
};

}  // namespace octet::model
