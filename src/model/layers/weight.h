// The weight of a linear layer, in whatever format its source holds it, and the three products with it.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "layers/group_builder.h"
#include "layers/pass.h"
#include "octet/ops/expert_gemm.h"
#include "octet/ops/lone_gemm.h"

namespace octet::model {

/// A weight [out, in]. Runs of its rows may have scales of their own: then each run makes its columns of the
/// output, and the gradient of the output comes as an operand for each.
class Weight {
 public:
  /// `experts`: matrices of equal shape that are stored one after the other; each GEMM reads one of them.
  explicit Weight(MatrixHandle matrix, std::int64_t experts = 1)
      : matrix_(std::move(matrix)), experts_(experts) {}
  /// Of one expert.
  std::int64_t rows() const { return matrix_.rows() / experts_; }
  std::int64_t cols() const { return matrix_.cols(); }
  bool trained() const { return matrix_.trained(); }
  /// Columns of the output with a scale each; none: one scale.
  std::vector<std::int64_t> scaled_columns(const precision::Recipe& recipe) const {
    return matrix_.scaled_rows(recipe.scale_parts);
  }

  /// The experts of grouped GEMMs, as the source has them: in one format, without scales of experts.
  const ops::Operand& stored(const Call& call) const { return matrix_.in(call.parameters).front(); }
  /// Rows [begin, begin + count) as the source has them, which lie in one run.
  ops::Operand rows_of(const Call& call, std::int64_t begin, std::int64_t count) const;

  /// out = input · Wᵀ + bias + addend; `bias` may be null, `addend` without data. This and its backward read
  /// the matrix of `expert`.
  void forward(const Call& call, const ops::Operand& input, const float* bias, const ops::ConstMatrix& addend,
               const ops::Matrix& out, std::int64_t expert = 0) const;
  /// `args` with this weight, where it is multiplied as it lies, in one piece; else none.
  std::optional<ops::LoneGemmArgs> lone(const Call& call, ops::LoneGemmArgs args) const;
  /// Enqueues what lone() gave and ops::has_lone_gemm() has said yes to, now or with what follows
  /// (LoneQueue).
  void forward(const Call& call, const ops::LoneGemmArgs& args) const;
  /// The gradient of the input.
  void backward(const Call& call, std::span<const ops::Operand> d_output, const ops::Matrix& d_input,
                std::int64_t expert = 0) const;
  /// Adds to the weight's gradient, or overwrites it, where it is wanted.
  void add_gradient(const Call& call, std::span<const ops::Operand> d_output, const ops::Operand& input,
                    std::int64_t expert = 0) const;

  // The GEMMs of all experts as one kernel (ops/expert_gemm.h), for rows in the order of their experts.
  // False, and nothing is enqueued, if the device has no such kernel for them, or the recipe multiplies in
  // FP8 or wants one order of sums.

  /// forward: d[r] = a[r] · Wᵀ, dgrad: d[r] = a[r] · W, with the matrix of the row's expert. `begins`: on the
  /// device, the first row of each expert.
  bool multiply_rows_of_experts(const Call& call, ops::Product product, const ops::Matrix& a,
                                const std::int32_t* begins, const ops::Matrix& d) const;
  /// Adds to the gradients of all experts, or overwrites them. The gradient is wanted.
  bool add_gradients_of_experts(const Call& call, const ops::Matrix& d_y, const ops::Matrix& x,
                                const std::int32_t* begins) const;

  std::size_t workspace(const Device& device, const Common& common) const;
  /// What the device makes of its FP8 products, by ops::Product and their shapes: of each kind the worst of
  /// its runs.
  std::array<ops::GemmOutcome, 3> planned(const Device& device, const Common& common) const;
  /// Where its products count.
  void set_place(const precision::AuditPlace& place) { place_ = place; }
  /// `cast`: its index among the weights that the quantizer makes (ModelLayers::cast_weights).
  void set_cast(std::int64_t cast) { cast_ = cast; }

 private:
  bool multiply_experts(const Call& call, const ops::ExpertGemmArgs& args) const;
  /// The weight as `product` reads it: as the source has it, or made now.
  std::vector<ops::Operand> operands(const Call& call, ops::Product product, std::int64_t expert) const;

  ProductShape whole(const Common& common) const;
  /// The shapes of its runs of rows with a scale each, or of the whole.
  std::vector<ProductShape> runs(const Common& common) const;

  MatrixHandle matrix_;
  std::int64_t experts_;
  precision::AuditPlace place_;
  std::int64_t cast_ = precision::Quantizer::kPlain;
};

}  // namespace octet::model
