#pragma once

#include <vector>

#include "layers/buffers.h"
#include "layers/pass.h"
#include "octet/model/architecture.h"
#include "octet/model/work.h"

namespace octet::model {

/// The gates of attention's output (ops/output_gate.h), or none. The projection of the queries then has a
/// gate after each query head. This class has the buffers before and after the gates.
class OutputGates {
 public:
  explicit OutputGates(const Architecture& architecture);
  explicit operator bool() const { return exist_; }
  void reserve(BlockBuffers& buffers, const Common& common);
  /// `back`: whether backward reaches the gates.
  std::vector<Operation> operations(std::int64_t tokens, bool back) const;

  /// Queries with their gates, keys and values: the output of the first GEMM.
  ops::Matrix projected(const Call& call) const { return top(projected_, call.tokens); }
  /// The output of attention before the gates, [tokens, q_heads * head_dim].
  ops::Matrix attended(const Call& call) const { return top(attended_, call.tokens); }
  /// Copies queries, keys and values out of projected() to `qkv`.
  void take(const Call& call, const ops::Matrix& qkv) const;
  /// Writes the gated output in the formats `out`. The values may be attended().
  void apply(const Call& call, const Wanted& out) const;
  /// Replaces the gradient of the gated output by the gradient of attended(). Keeps the gradient of the gates
  /// for put().
  void backward(const Call& call, const ops::Matrix& d_out) const;
  /// Returns the gradient of projected(), from backward() and the gradient of queries, keys and values.
  ops::Matrix put(const Call& call, const ops::Matrix& d_qkv) const;

 private:
  bool exist_;
  ops::Heads heads_;
  ops::Matrix projected_, attended_, d_projected_;
};

}  // namespace octet::model
