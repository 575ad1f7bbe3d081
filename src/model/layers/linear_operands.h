// The two operands of a linear layer's GEMMs other than its weight: its input and the gradient of its output.
// The classes tell the producer of each matrix what to write.
#pragma once

#include <vector>

#include "layers/buffers.h"
#include "layers/pass.h"

namespace octet::model {

/// The order in which a producer writes. A norm works row by row. It makes the transposed FP8 copy from the
/// row copy, so it writes both if the transposed copy is needed.
enum class WriteOrder { any, rows };

/// Returns a matrix as a GEMM operand without FP8 copies.
inline ops::Operand operand_of(const ops::Matrix& m) {
  return {.data = m.data, .dtype = m.dtype, .rows = m.rows, .cols = m.cols};
}

/// Which rows are gathered.
struct Rows {
  const std::int32_t* rows = nullptr;  ///< [count], on the device
  std::int64_t count = 0;
};

/// The input of a linear layer, from forward to backward.
class LinearInput {
 public:
  /// `tensor`: the index in the quantizer, or kPlain.
  void set_tensor(std::int64_t tensor) { tensor_ = tensor; }
  struct Needs {
    std::int64_t cols = 0;      ///< width of the input
    bool kept_values = false;   ///< backward reads the values
    bool kept_operand = false;  ///< backward reads the operand, for the gradient of a weight
    bool given = false;         ///< take() is called with values in other buffers
  };
  void reserve(BlockBuffers& buffers, const Common& common, const Needs& needs);

  /// The values, [tokens, cols] in the compute dtype; without data if only FP8 copies exist.
  ops::Matrix values(const Call& call) const { return narrowed(values_, call.tokens, cols_); }
  /// Formats that the producer must write. It then calls written().
  Wanted wanted(const Call& call, WriteOrder order) const;
  void written(const Call& call, WriteOrder order);
  /// Called instead of written() if the producer wrote only the values.
  void values_written(const Call& call);
  /// Called instead of written() if the values are in a buffer that is kept until backward has read them.
  void take(const Call& call, const ops::Matrix& values);
  /// The operand of GEMMs.
  const ops::Operand& operand() const { return operand_; }

  // FP8 copies in the scratch, for any number of rows up to Linear::copied_rows().

  /// Returns `values` as an operand of `gemm_kind`.
  ops::Operand copied(const Call& call, const ops::Matrix& values, bool record,
                      ops::GemmKind gemm_kind) const;
  /// Returns the outputs that the producer of `values` must write for forward. It then calls
  /// copies_written().
  Wanted wanted_copies(const Call& call, const ops::Matrix& values) const;
  ops::Operand copies_written(const Call& call, const ops::Matrix& values) const;
  /// Returns the operand of forward with the rows x[i] = tokens[rows[i]]. Copies `tokens` into `room`, which
  /// has a byte for each of its values, and gathers rows of the copy.
  ops::Operand gathered(const Call& call, const ops::Matrix& tokens, const Rows& rows, void* room) const;

 private:
  /// Returns the copies that the readers of this pass need.
  precision::Fp8Copy copy_for(const Call& call, WriteOrder order) const;
  void set_operand(ops::Operand operand);

  std::int64_t tensor_ = precision::Quantizer::kPlain;
  std::int64_t cols_ = 0;
  ops::Matrix values_;
  precision::Fp8Copy copy_;  ///< empty: the values are the operand
  ops::Operand operand_;
};

/// The gradient of a linear layer's output. All output gradients share one buffer of FP8 copies.
class OutputGradient {
 public:
  void set_tensor(std::int64_t tensor) { tensor_ = tensor; }
  /// Whether values in the compute dtype are needed because the recipe quantises finished matrices.
  bool needs_values(const Common& common) const { return common.quantizer.needs_values(tensor_); }
  /// Formats that the producer must write in addition to the values, or instead of them.
  ops::QuantizeInto wanted(const Call& call) const;
  /// Returns the operands of GEMMs after the producer wrote `values` and the wanted copies: one operand for
  /// each scale, in the order of the columns.
  std::vector<ops::Operand> written(const Call& call, const ops::ConstMatrix& values) const;
  /// Same as written(), if the producer wrote only the values.
  std::vector<ops::Operand> values_written(const Call& call, const ops::ConstMatrix& values) const;
  /// Like LinearInput::gathered(), as an operand of dgrad.
  ops::Operand gathered(const Call& call, const ops::Matrix& tokens, const Rows& rows, void* room) const;

 private:
  std::int64_t tensor_ = precision::Quantizer::kPlain;
};

}  // namespace octet::model
