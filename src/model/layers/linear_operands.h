// The two matrices that a linear layer's products read besides its weight: its input and the gradient of its
// output. Who makes such a matrix asks here what to write.
#pragma once

#include <vector>

#include "layers/buffers.h"
#include "layers/pass.h"

namespace octet::model {

/// In which order a producer writes. A norm works row by row: it makes the transposed FP8 copy out of the
/// other one, and so writes both where the transposed one is wanted.
enum class WriteOrder { any, rows };

/// A matrix as an operand of a product, without FP8 copies.
inline ops::Operand operand_of(const ops::Matrix& m) {
  return {.data = m.data, .dtype = m.dtype, .rows = m.rows, .cols = m.cols};
}

/// The input of a linear layer, from forward to backward.
class LinearInput {
 public:
  /// `tensor`: its index in the quantizer, or kPlain.
  void set_tensor(std::int64_t tensor) { tensor_ = tensor; }
  struct Needs {
    std::int64_t cols = 0;      ///< its width
    bool kept_values = false;   ///< its values are read again in backward
    bool kept_operand = false;  ///< so is the operand, for the gradient of a weight
  };
  void reserve(BlockBuffers& buffers, const Common& common, const Needs& needs);

  /// Its values, [tokens, cols] in the compute dtype; no data where only FP8 copies exist.
  ops::Matrix values(const Call& call) const { return narrowed(values_, call.tokens, cols_); }
  /// What its producer writes, which then says so by written().
  Wanted wanted(const Call& call, WriteOrder order) const;
  void written(const Call& call, WriteOrder order);
  /// The producer wrote the values and nothing else.
  void values_written(const Call& call);
  /// What products read.
  const ops::Operand& operand() const { return operand_; }
  /// Finished values of any number of rows as `product` reads them. An FP8 copy is made in the scratch.
  ops::Operand copied(const Call& call, const ops::Matrix& values, bool record, ops::Product product) const;

 private:
  /// The copies that the readers of this pass need.
  precision::Fp8Copy copy_for(const Call& call, WriteOrder order) const;
  void set_operand(ops::Operand operand);

  std::int64_t tensor_ = precision::Quantizer::kPlain;
  std::int64_t cols_ = 0;
  ops::Matrix values_;
  precision::Fp8Copy copy_;  ///< empty: the values are the operand
  ops::Operand operand_;
};

/// The gradient of a linear layer's output. Its FP8 copy lies where that of every other one does.
class OutputGradient {
 public:
  void set_tensor(std::int64_t tensor) { tensor_ = tensor; }
  /// Whether it must exist in the compute dtype because the recipe quantises finished matrices.
  bool needs_values(const Common& common) const { return common.quantizer.needs_values(tensor_); }
  /// What its producer writes beside (or instead of) the values.
  ops::QuantizeInto wanted(const Call& call) const;
  /// The operands of products after the producer wrote `values` and what was wanted: one for each scale, in
  /// the order of the columns.
  std::vector<ops::Operand> written(const Call& call, const ops::ConstMatrix& values) const;
  /// The same of values whose producer was not asked to write anything else.
  std::vector<ops::Operand> values_written(const Call& call, const ops::ConstMatrix& values) const;

 private:
  std::int64_t tensor_ = precision::Quantizer::kPlain;
};

}  // namespace octet::model
