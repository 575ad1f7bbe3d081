// The weight of a linear layer, in any format of its source, and its three GEMMs.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "layers/group_builder.h"
#include "layers/pass.h"
#include "octet/ops/decode_gemm.h"
#include "octet/ops/expert_gemm.h"

namespace octet::model {

/// A weight [out, in]. Runs of its rows may have different FP8 scales. Each run is then a GEMM for its
/// columns of the output, and the output's gradient has one operand for each run.
class Weight {
 public:
  /// `experts`: number of concatenated matrices of equal shape. Each GEMM reads one of them.
  explicit Weight(MatrixHandle matrix, std::int64_t experts = 1)
      : matrix_(std::move(matrix)), experts_(experts) {}
  /// Rows and columns of one expert.
  std::int64_t rows() const { return matrix_.rows() / experts_; }
  std::int64_t cols() const { return matrix_.cols(); }
  bool trained() const { return matrix_.trained(); }
  /// Returns the number of output columns of each run with one scale. Empty: one scale.
  std::vector<std::int64_t> scaled_columns(const precision::Recipe& recipe) const {
    return matrix_.scaled_rows(recipe.scale_parts);
  }

  /// The stored weights of all experts, for grouped GEMMs: one format, without scales of experts.
  const ops::Operand& stored(const Call& call) const { return matrix_.in(call.parameters).front(); }
  /// Returns the stored rows [begin, begin + count), which must be in one run.
  ops::Operand rows_of(const Call& call, std::int64_t begin, std::int64_t count) const;

  /// Computes out = input · Wᵀ + bias + addend with the matrix of `expert`. `bias` may be null, and `addend`
  /// may be without data.
  void forward(const Call& call, const ops::Operand& input, const float* bias, const ops::ConstMatrix& addend,
               const ops::Matrix& out, std::int64_t expert = 0) const;
  /// Returns `args` with this weight, if GEMMs read the stored weight as one run. Otherwise returns nullopt.
  std::optional<ops::DecodeGemmArgs> decode_args(const Call& call, ops::DecodeGemmArgs args) const;
  /// Enqueues the result of decode_args(), now or together with later GEMMs (DecodeQueue). Requires
  /// ops::has_decode_gemm().
  void forward(const Call& call, const ops::DecodeGemmArgs& args) const;
  /// Writes the gradient of the input to `d_input`.
  void backward(const Call& call, std::span<const ops::Operand> d_output, const ops::Matrix& d_input,
                std::int64_t expert = 0) const;
  /// Adds to the weight's gradient, or overwrites it. Does nothing for a frozen weight.
  void add_gradient(const Call& call, std::span<const ops::Operand> d_output, const ops::Operand& input,
                    std::int64_t expert = 0) const;

  // The GEMMs of all experts as one kernel (ops/expert_gemm.h), for rows in the order of their experts.

  /// Whether the device multiplies `rows` rows of all experts as one kernel. Not with scales of blocks or
  /// rows, and not with fixed_order.
  bool multiplies_together(const Device& device, const Common& common, ops::GemmKind gemm_kind,
                           std::int64_t rows) const;
  /// Computes d[r] = a[r] · Wᵀ (forward) or d[r] = a[r] · W (dgrad) with the matrix of the row's expert.
  /// `begins`: the first row of each expert, in device memory. Requires multiplies_together().
  void multiply_rows_of_experts(const Call& call, ops::GemmKind gemm_kind, const ops::Operand& a,
                                const std::int32_t* begins, const ops::Matrix& d) const;
  /// Adds to the gradients of all experts, or overwrites them. The weight must be trained. Requires
  /// multiplies_together().
  void add_gradients_of_experts(const Call& call, const ops::Operand& d_y, const ops::Operand& x,
                                const std::int32_t* begins) const;

  std::size_t workspace(const Device& device, const Common& common) const;
  /// Returns the expected outcome of its FP8 GEMMs on the device, by ops::GemmKind: the worst outcome of all
  /// runs.
  std::array<ops::GemmOutcome, 3> planned(const Device& device, const Common& common) const;
  /// Sets the place of its GEMMs in the audit.
  void set_place(const precision::AuditPlace& place) { place_ = place; }
  /// `cast`: the index among the weights that the quantizer casts (ModelLayers::cast_weights).
  void set_cast(std::int64_t cast) { cast_ = cast; }

 private:
  void multiply_experts(const Call& call, ops::ExpertGemmArgs args) const;
  /// Returns the operands of `gemm_kind`: the stored weight, or copies that are made now.
  std::vector<ops::Operand> operands(const Call& call, ops::GemmKind gemm_kind, std::int64_t expert) const;

  GemmShape whole(const Common& common) const;
  /// Returns the shapes of its runs with one scale each, or of the whole weight.
  std::vector<GemmShape> runs(const Common& common) const;

  MatrixHandle matrix_;
  std::int64_t experts_;
  precision::AuditPlace place_;
  std::int64_t cast_ = precision::Quantizer::kPlain;
};

}  // namespace octet::model
