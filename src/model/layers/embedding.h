#pragma once

#include <vector>

#include "layers/group_builder.h"
#include "layers/pass.h"
#include "layers/work.h"

namespace octet::model {

/// The table of token embeddings.
class Embedding {
 public:
  Embedding(GroupBuilder& group, const Architecture& architecture);

  bool trained() const { return table_.trained(); }
  /// The table, for a tied head.
  const MatrixHandle& table() const { return table_; }
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens) const;

  /// Writes the scaled rows of `ids` to out [tokens, hidden]. `ids` [tokens] are in device memory, relative
  /// to the first row of this rank. If the table is split, sums the rows over the ranks.
  void forward(const Call& call, const std::int32_t* ids, const ops::Matrix& out) const;
  void backward(const Call& call, const std::int32_t* ids, const ops::ConstMatrix& d_out) const;

 private:
  /// Rounded to the dtype of the table, as transformers rounds it.
  float scale(const Common& common) const;

  MatrixHandle table_;
  double scale_;
  std::int32_t padding_id_;
  bool sums_;  ///< sums over ranks: one rank has a token's row, the others add zeros
};

}  // namespace octet::model
