// Adapters of the modules of a linear layer (LoRA: Hu et al. 2021, arXiv:2106.09685).
#pragma once

#include <vector>

#include "layers/buffers.h"
#include "layers/group_builder.h"
#include "layers/pass.h"
#include "octet/model/work.h"

namespace octet::model {

/// y += factor · B (A x) for some of the modules whose outputs lie side by side in y. They read values of the
/// compute dtype, whatever a recipe makes of the weight's operands.
class LowRank {
 public:
  /// `modules`: names and outputs of all modules; those without an adapter have none here either.
  LowRank(GroupBuilder& group, std::int64_t inputs, const std::vector<Part>& modules);
  explicit operator bool() const { return !adapters_.empty(); }

  /// Ranks of all adapters together, each with room to begin on a boundary of its own: columns of the scratch
  /// that backward needs.
  std::int64_t scratch_columns() const;
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& forward_again) const;
  /// A row of the audit for all of them.
  precision::AuditRow audit_row(const char* title) const;
  void set_place(const precision::AuditPlace& place) { place_ = place; }

  /// `x` [tokens, inputs]; adds to `out`.
  void forward(const Call& call, const ops::Matrix& x, const ops::Matrix& out) const;
  /// Gradients of A and B, from those of the output, [tokens, outputs] in the compute dtype; leaves in the
  /// scratch what add_input_gradient() reads.
  void gradients(const Call& call, const ops::Matrix& x, const ops::ConstMatrix& d_output) const;
  /// Adds to the gradient of the input. No other layer's backward comes in between.
  void add_input_gradient(const Call& call, const ops::Matrix& d_input) const;

 private:
  struct Adapter {
    MatrixHandle a, b;
    std::int64_t column = 0;  ///< of the output, where the module's begin
    float factor = 1.0f;
    ops::Matrix inner;         ///< [tokens, rank]: factor · A x
    std::int64_t scratch = 0;  ///< column of the scratch
    std::int64_t rank() const { return a.rows(); }
  };
  void project(const Call& call, const Adapter& adapter, const ops::Matrix& x) const;
  ops::Matrix d_inner(const Call& call, const Adapter& adapter) const;
  void add_gradient(const Call& call, const MatrixHandle& matrix, ops::GemmArgs args) const;

  std::int64_t inputs_;
  std::vector<Adapter> adapters_;
  precision::AuditPlace place_;
};

}  // namespace octet::model
