#pragma once

#include <vector>

#include "layers/buffers.h"
#include "layers/pass.h"
#include "octet/model/architecture.h"
#include "octet/model/work.h"

namespace octet::model {

/// A norm of each value head without weight (Architecture::value_norm), or none. In a block with
/// BlockShape::keys_as_values, the values are made here from the projected keys.
class ValueNorm {
 public:
  ValueNorm(const Architecture& architecture, std::int64_t layer);
  explicit operator bool() const { return exists_; }
  /// Whether the values are the projected keys.
  bool reads_keys() const { return reads_keys_; }
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  /// `back`: whether backward reaches it.
  std::vector<Operation> operations(std::int64_t tokens, bool back) const;

  /// Returns the projected columns of `qkv` [tokens, qkv_width]: all of them, or only queries and keys.
  ops::Matrix projected(const ops::Matrix& qkv) const;
  /// Writes the normed values to `qkv`. Its keys must not be normed or rotated yet.
  void forward(const Call& call, const ops::Matrix& qkv) const;
  /// Replaces the gradient of the normed values in d_qkv by the gradient of the values. If it reads keys,
  /// adds the gradient to the gradient of the projected keys instead, which must be in d_qkv. `raw_keys`:
  /// [tokens, kv_heads * head_dim], the projected keys; not read otherwise.
  void backward(const Call& call, const ops::Matrix& d_qkv, const ops::Matrix& raw_keys) const;

  /// Returns the gradient of the projected columns as dense rows, from the result of backward().
  ops::Matrix put(const Call& call, const ops::Matrix& d_qkv) const;

 private:
  /// The columns of value head `head`, or of key head `head`.
  ops::Matrix value(const ops::Matrix& qkv, std::int64_t head) const;
  ops::Matrix key(const ops::Matrix& qkv, std::int64_t head) const;
  float* rstd(const Call& call, std::int64_t head) const {
    return rstd_ == nullptr ? nullptr : rstd_ + head * call.tokens;
  }

  bool exists_, reads_keys_;
  ops::Heads heads_;
  float eps_;
  ops::Matrix raw_;  ///< [tokens, kv_heads * head_dim]: the values before the norm, unless they are keys
  float* rstd_ = nullptr;    ///< [kv_heads, tokens]
  ops::Matrix d_projected_;  ///< of values that are keys: [tokens, (q_heads + kv_heads) * head_dim]
};

}  // namespace octet::model
