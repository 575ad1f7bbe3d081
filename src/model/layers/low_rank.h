// Adapters of the modules of a linear layer (LoRA: Hu et al. 2021, arXiv:2106.09685; DoRA: Liu et al. 2024,
// arXiv:2402.09353).
#pragma once

#include <string>
#include <vector>

#include "layers/buffers.h"
#include "layers/group_builder.h"
#include "layers/pass.h"
#include "layers/weight.h"
#include "octet/model/work.h"

namespace octet::model {

/// Adds factor · B (A x) to y for some modules. The columns of y are the concatenated outputs of all modules.
/// Adapters read x in the compute dtype, also with an FP8 recipe. In training, modules with dropout use
/// different noise.
///
/// With DoRA, the layer first computes y' = W x plus the output of adapters, without bias. Then y is y' with
/// each column of an adapted module scaled by magnitude / norm.
class LowRank {
 public:
  struct Shape {
    std::string name;  ///< name of the linear layer; all its A are one stored tensor
    std::int64_t inputs = 0;
    std::vector<Part> modules;  ///< names and outputs of all modules, with or without an adapter
    double init_std = 0.02;     ///< of the weights of the modules
    bool remade = false;        ///< the caller recomputes A x before gradients(), so it is not kept
  };
  LowRank(GroupBuilder& group, const Shape& shape);
  explicit operator bool() const { return !bundles_.empty(); }
  /// Whether any module has DoRA, and whether any module has dropout.
  bool scales() const;
  bool drops() const;

  /// Returns the columns of the scratch for backward: the sum of the adapters' ranks. Each bundle is rounded
  /// up, so that the next bundle is aligned.
  std::int64_t scratch_columns() const;
  /// Reserves the buffers. The caller passes two of them for the adapters of an expert. `unscaled`: with
  /// DoRA, the buffer for y' of the rows of all experts. `inner`: a buffer for A x with scratch_columns()
  /// columns that all experts share, only if `remade`. A buffer without columns is reserved here, for all
  /// tokens.
  void reserve(BlockBuffers& buffers, const ops::Matrix& unscaled = {}, const ops::Matrix& inner = {});
  std::size_t workspace(const Device& device, const Common& common) const;
  /// `passes_on`: the input's gradient is needed.
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& forward_again, bool passes_on) const;
  /// Returns one audit row for all adapters.
  precision::AuditRow audit_row(const char* title) const;
  void set_place(const precision::AuditPlace& place) { place_ = place; }

  /// Adds the output of the adapters for `x` [tokens, inputs] to `out` [tokens, outputs].
  void forward(const Call& call, const ops::Matrix& x, const ops::Matrix& out) const;
  /// Recomputes only the results that backward reads: A x.
  void remake(const Call& call, const ops::Matrix& x) const;
  /// Computes the gradients of A and B from `d_output`, [tokens, outputs] in the compute dtype. Also does
  /// inner_gradients().
  void gradients(const Call& call, const ops::Matrix& x, const ops::ConstMatrix& d_output) const;
  /// Writes the gradient of A x to the scratch, for add_input_gradient().
  void inner_gradients(const Call& call, const ops::ConstMatrix& d_output) const;
  /// Adds to the gradient of the input. No backward of another layer may run after gradients() and before
  /// this.
  void add_input_gradient(const Call& call, const ops::Matrix& d_input) const;

  // With DoRA.

  /// y' [tokens, outputs], kept for backward.
  ops::Matrix unscaled(const Call& call) const;
  /// Computes norms and scales from the weight's values in their GEMM format. The first module of the layer
  /// begins at row `first` of the weight.
  void measure(const Call& call, const Weight& weight, std::int64_t first = 0) const;
  struct Output {
    const float* bias = nullptr;  ///< may be null
    ops::ConstMatrix addend;      ///< may be without data
    ops::Matrix out;
  };
  /// Scales y' and adds the bias and the addend.
  void scale(const Call& call, const Output& output) const;
  /// Computes the gradients of magnitudes from the gradient of y. Writes the gradient of y' to the scratch.
  void unscale(const Call& call, const ops::ConstMatrix& d_output) const;
  /// Writes only the gradient of y'.
  void scale_gradient(const Call& call, const ops::ConstMatrix& d_output) const;
  ops::Matrix unscaled_gradient(const Call& call) const {
    return narrowed(call.common.scratch.scaled, call.tokens, outputs_);
  }

 private:
  friend class ExpertAdapters;
  struct Adapter {
    MatrixHandle b;           ///< [outputs of the module, rank]
    VectorHandle magnitude;   ///< with DoRA
    std::int64_t column = 0;  ///< first column of the module in the output
    std::int64_t row = 0;     ///< first row of the module in the stored A
    std::int64_t rank() const { return b.cols(); }
  };
  /// Adapters with the same input values and the same factor. One GEMM for all A of a bundle reads the input
  /// once, and one GEMM adds to its gradient. With dropout, a bundle is one adapter.
  struct Bundle {
    std::vector<Adapter> adapters;
    std::uint64_t key = 0;  ///< of dropout
    float dropout = 0.0f;
    float factor = 1.0f;
    std::int64_t row = 0;      ///< first row in the stored A
    std::int64_t rank = 0;     ///< sum of the adapters' ranks
    ops::Matrix inner;         ///< [tokens, rank]: factor · A x
    std::int64_t scratch = 0;  ///< first column in the scratch
  };
  /// Whether an adapter can join the bundle.
  static bool joins(const Bundle& bundle, const AdapterShape& adapter);
  /// Rows [row, row + count) of the stored A.
  ops::Operand a_rows(const Call& call, std::int64_t row, std::int64_t count) const;
  /// Returns the memory operations of dropout and DoRA.
  std::vector<Operation> values_of(const Bundle& bundle, std::int64_t tokens, const Repeats& again,
                                   bool passes_on) const;
  void project(const Call& call, const Bundle& bundle, const ops::Matrix& x) const;
  /// Returns the input of A: x, or x after dropout in the scratch.
  ops::Matrix input(const Call& call, const Bundle& bundle, const ops::Matrix& x) const;
  ops::Matrix d_inner(const Call& call, const Bundle& bundle) const;
  void add_gradient(const Call& call, const MatrixHandle& matrix, ops::GemmArgs args) const;

  void inner_gradients(const Call& call, const Bundle& bundle, const ops::ConstMatrix& d_output) const;

  std::int64_t inputs_, outputs_ = 0;
  bool remade_;
  MatrixHandle a_;  ///< [ranks of all adapters, inputs]
  std::vector<Bundle> bundles_;
  // With DoRA.
  ops::Matrix unscaled_;
  float* scale_ = nullptr;  ///< [outputs]: 1 where a module has no adapter
  float* norm_ = nullptr;   ///< [outputs]
  precision::AuditPlace place_;
};

}  // namespace octet::model
