#pragma once

#include <array>
#include <vector>

#include "layers/buffers.h"
#include "layers/group_builder.h"
#include "layers/pass.h"
#include "layers/work_list.h"
#include "octet/ops/decode_gemm.h"
#include "octet/ops/rope.h"

namespace octet::model {

/// The steps between the GEMM of queries and keys and attention: norms of the heads, if the architecture has
/// them, and the rotary embedding.
class Rotary {
 public:
  /// `layer`: the index of the block in the model.
  Rotary(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);
  bool trained() const { return q_norm_.trained() || k_norm_.trained(); }
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  /// `back`: whether backward reaches it.
  std::vector<Operation> operations(std::int64_t tokens, bool back) const;

  /// With norms of single heads: the key heads of forward's input, [tokens, kv_heads * head_dim].
  ops::Matrix raw_keys(const Call& call) const {
    return columns_of(top(raw_, call.tokens), heads_.q_heads * heads_.head_dim,
                      heads_.kv_heads * heads_.head_dim);
  }
  /// In place on qkv [tokens, qkv_width].
  void forward(const Call& call, const ops::Matrix& qkv) const;
  /// Fuses the rotation into a GEMM of few tokens that computes queries, keys and values. Returns false and
  /// leaves `of` unchanged if heads have norms, rotate only in part or in pairs of neighbours, or have
  /// different angles. Leaves it unchanged, too, if nothing rotates.
  bool put_behind(const Call& call, ops::DecodeGemmArgs& of) const;
  /// Transforms the gradient of forward's result in place. `wanted`: formats that the reader needs. If it
  /// needs no values, the values of d_qkv may be undefined afterwards.
  void backward(const Call& call, const ops::Matrix& d_qkv, const Wanted& wanted) const;

 private:
  bool normed() const { return static_cast<bool>(q_norm_); }
  std::int64_t normed_heads() const { return heads_.q_heads + heads_.kv_heads; }
  /// Queries or keys with one norm of all heads: in qkv, and before the norm.
  struct AllHeads {
    const VectorHandle& weight;
    ops::Matrix heads, raw;
    float* rstd = nullptr;  ///< [tokens]
  };
  std::array<AllHeads, 2> all_heads(const Call& call, const ops::Matrix& qkv) const;
  void backward_of_all_heads(const Call& call, const ops::Matrix& d_qkv, const Wanted& wanted) const;
  /// Rotates queries and keys in place, or back if `inverse`. `wanted`: as for backward().
  void rotate(const Call& call, const ops::Matrix& qkv, bool inverse, const Wanted& wanted) const;
  /// rotate() with angles that differ between queries and keys, or between documents.
  void rotate_apart(const Call& call, const ops::Matrix& qkv, bool inverse) const;
  const RotaryTable& table(const Call& call) const { return call.common.ropes[rope_]; }
  /// The table for norms of single heads.
  const RotaryTable& table_of_norms(const Call& call) const {
    return norm_last_ ? call.common.ropes.back() : table(call);
  }

  ops::Heads heads_;
  bool rotates_;
  std::size_t rope_;  ///< table of the rotation, or the table that rotates nothing
  float eps_;
  std::int64_t rotated_;  ///< RopeArgs::rotated
  bool interleaved_;      ///< RopeArgs::interleaved
  bool norm_last_;        ///< norms follow the rotation
  bool all_heads_;        ///< one norm of all query heads, and one of all key heads
  bool one_plus_weight_;
  VectorHandle q_norm_, k_norm_;
  // With norms: the heads before the norms.
  ops::Matrix raw_;  ///< [tokens, (q_heads + kv_heads) * head_dim]
  float* rstd_ = nullptr;
};

}  // namespace octet::model
