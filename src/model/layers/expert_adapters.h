#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "layers/low_rank.h"
#include "octet/ops/expert_low_rank.h"

namespace octet::model {

/// Rows in the order of their experts. Expert e has rows [begins[e], begins[e + 1]). Matrices may have
/// further rows, which belong to no expert.
struct ExpertRows {
  const std::int32_t* begins = nullptr;  ///< [experts + 1], on the device
  const std::int32_t* tokens = nullptr;  ///< the token of each row, on the device
  std::span<const std::int32_t> on_host;
};

/// The adapters of a linear layer's experts: one LowRank per expert, or none. If all have one shape, without
/// DoRA and dropout, one op multiplies the rows of all experts (ops/expert_low_rank.h). Otherwise the caller
/// calls the LowRank of each expert for its rows.
class ExpertAdapters {
 public:
  void add(LowRank adapters) { each_.push_back(std::move(adapters)); }
  void clear() { each_.clear(); }
  bool empty() const { return each_.empty(); }
  std::vector<LowRank>& each() { return each_; }
  const std::vector<LowRank>& each() const { return each_; }
  /// Whether any expert has DoRA, and whether any has dropout.
  bool scales() const;
  bool drops() const;

  /// Reserves buffers for at most `rows` rows of all experts. `unscaled`: see LowRank::reserve().
  void reserve(BlockBuffers& buffers, const Common& common, std::int64_t rows, const ops::Matrix& unscaled);

  /// A matrix of the first expert, and the elements from the matrix of an expert to the next.
  struct Spaced {
    ops::Matrix first;
    std::int64_t step = 0;
  };
  /// The matrices of all experts: A and its gradient by bundle, B and its gradient by adapter.
  struct Matrices {
    std::vector<Spaced> a, d_a, b, d_b;
  };
  /// Returns the matrices for the functions below if one op can multiply `rows` rows of all experts: the
  /// device has the kernels, and the experts are equally spaced in the parameters and in the gradients.
  std::optional<Matrices> together(const Call& call, std::int64_t rows) const;

  /// Adds the output of the adapters for `x` to `out`. Also does project().
  void forward(const Call& call, const ExpertRows& rows, const Matrices& matrices, const ops::Matrix& x,
               const ops::Matrix& out) const;
  /// Computes A x.
  void project(const Call& call, const ExpertRows& rows, const Matrices& matrices,
               const ops::Matrix& x) const;
  /// Computes the gradient of A x from `d_output`.
  void inner_gradients(const Call& call, const ExpertRows& rows, const Matrices& matrices,
                       const ops::Matrix& d_output) const;
  /// Returns A x and its gradient as one matrix of `rows` rows.
  ops::Matrix both_inner(std::int64_t rows) const { return top(inner_, rows); }
  /// Computes the gradients of A and B, after project() and inner_gradients().
  void gradients(const Call& call, const ExpertRows& rows, const Matrices& matrices, const ops::Matrix& x,
                 const ops::Matrix& d_output) const;
  /// Adds to the gradient of the input, after inner_gradients().
  void add_input_gradient(const Call& call, const ExpertRows& rows, const Matrices& matrices,
                          const ops::Matrix& d_input) const;

 private:
  /// Whether the adapters of all experts have one shape, without DoRA and dropout.
  bool alike() const;
  /// Returns the matrices without data.
  Matrices shapes(const Common& common) const;
  /// Returns the matrices of this pass; nullopt if experts are not equally spaced.
  std::optional<Matrices> found(const Call& call) const;
  /// Whether the device has kernels for these matrices and `rows` rows.
  bool has_kernels(const Device& device, const Common& common, const Matrices& matrices,
                   std::int64_t rows) const;
  const std::vector<LowRank::Bundle>& bundles() const { return each_.front().bundles_; }
  /// Calls act(bundle, adapter, index of the adapter) for the adapters of the first expert.
  template <class Act>
  void each_adapter(Act&& act) const;
  /// The rows of factor · A x, and of its gradient.
  ops::Matrix inner(const LowRank::Bundle& bundle, std::int64_t rows) const;
  ops::Matrix d_inner(const LowRank::Bundle& bundle, std::int64_t rows) const;
  /// Enqueues a GEMM of all experts, and counts it in the audit.
  void multiply(const Call& call, const ExpertRows& rows, ops::ExpertLowRankArgs args) const;

  std::vector<LowRank> each_;
  /// factor · A x of all bundles and, in training, its gradient. Without columns: not reserved.
  ops::Matrix inner_;
};

}  // namespace octet::model
