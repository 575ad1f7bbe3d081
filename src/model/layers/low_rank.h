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

/// y += factor · B (A x) for some of the modules whose outputs lie side by side in y. They read values of the
/// compute dtype, whatever a recipe makes of the weight's operands; in training through dropout where the
/// module asks for it, each module with noise of its own.
///
/// With DoRA the layer first makes y' = W x and lets adapters add to it, without bias; y is y' with every
/// column of an adapted module scaled by magnitude / norm.
class LowRank {
 public:
  struct Shape {
    std::string name;  ///< of the linear layer: its adapters' A, which read the same input, are stored as one
    std::int64_t inputs = 0;
    std::vector<Part> modules;  ///< names and outputs of all modules; those without an adapter have none here
    double init_std = 0.02;     ///< of their weights
    bool remade = false;        ///< A x is made again before gradients(), so that nothing is kept for it
  };
  LowRank(GroupBuilder& group, const Shape& shape);
  explicit operator bool() const { return !bundles_.empty(); }
  /// Whether any module has DoRA; whether any has dropout.
  bool scales() const;
  bool drops() const;

  /// Ranks of all adapters together, those of each bundle with room to begin on a boundary of their own:
  /// columns of the scratch that backward needs.
  std::int64_t scratch_columns() const;
  void reserve(BlockBuffers& buffers);
  std::size_t workspace(const Device& device, const Common& common) const;
  /// `passes_on`: the input's gradient is wanted.
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& forward_again, bool passes_on) const;
  /// A row of the audit for all of them.
  precision::AuditRow audit_row(const char* title) const;
  void set_place(const precision::AuditPlace& place) { place_ = place; }

  /// `x` [tokens, inputs]; adds to `out`.
  void forward(const Call& call, const ops::Matrix& x, const ops::Matrix& out) const;
  /// What backward reads of forward, where nobody reads the output again.
  void remake(const Call& call, const ops::Matrix& x) const;
  /// Gradients of A and B, from those of the output, [tokens, outputs] in the compute dtype; leaves in the
  /// scratch what add_input_gradient() reads.
  void gradients(const Call& call, const ops::Matrix& x, const ops::ConstMatrix& d_output) const;
  /// What gradients() leaves in the scratch, alone.
  void inner_gradients(const Call& call, const ops::ConstMatrix& d_output) const;
  /// Adds to the gradient of the input. No other layer's backward comes in between.
  void add_input_gradient(const Call& call, const ops::Matrix& d_input) const;

  // With DoRA.

  /// y', [tokens, outputs], kept for backward.
  ops::Matrix unscaled(const Call& call) const { return top(unscaled_, call.tokens); }
  /// Norms and scales, of the weight's values as products read them.
  void measure(const Call& call, const Weight& weight) const;
  struct Output {
    const float* bias = nullptr;  ///< or null
    ops::ConstMatrix addend;      ///< or no data
    ops::Matrix out;
  };
  /// Scales y' and adds the bias and the addend.
  void scale(const Call& call, const Output& output) const;
  /// From the gradient of y: those of magnitudes, and that of y' in the scratch.
  void unscale(const Call& call, const ops::ConstMatrix& d_output) const;
  ops::Matrix unscaled_gradient(const Call& call) const {
    return narrowed(call.common.scratch.scaled, call.tokens, outputs_);
  }

 private:
  struct Adapter {
    MatrixHandle b;           ///< [outputs of the module, rank]
    VectorHandle magnitude;   ///< with DoRA
    std::int64_t column = 0;  ///< of the output, where the module's begin
    std::int64_t row = 0;     ///< of the stored A, where the module's rows begin
    std::int64_t rank() const { return b.cols(); }
  };
  /// Adapters whose A read the same values and are multiplied by the same factor: one GEMM for all of them
  /// reads the input once, and one adds to its gradient. With dropout a bundle is one adapter.
  struct Bundle {
    std::vector<Adapter> adapters;
    std::uint64_t key = 0;  ///< of dropout
    float dropout = 0.0f;
    float factor = 1.0f;
    std::int64_t row = 0;      ///< of the stored A
    std::int64_t rank = 0;     ///< of all of them together
    ops::Matrix inner;         ///< [tokens, rank]: factor · A x
    std::int64_t scratch = 0;  ///< column of the scratch
  };
  /// Whether an adapter's A can be multiplied with those of the bundle.
  static bool joins(const Bundle& bundle, const AdapterShape& adapter);
  /// Rows [row, row + count) of the stored A.
  ops::Operand a_rows(const Call& call, std::int64_t row, std::int64_t count) const;
  /// What dropout and DoRA read and write.
  std::vector<Operation> values_of(const Bundle& bundle, std::int64_t tokens, const Repeats& again,
                                   bool passes_on) const;
  void project(const Call& call, const Bundle& bundle, const ops::Matrix& x) const;
  /// What A reads of x: x itself, or in the scratch what dropout leaves of it.
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
