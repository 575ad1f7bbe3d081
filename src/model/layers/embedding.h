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
  /// For a head that is tied to it.
  const MatrixHandle& table() const { return table_; }
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens) const;

  /// out [tokens, hidden] = the scaled rows of `ids` [tokens] (device), counted from the first row that this
  /// rank has; those of other ranks are added.
  void forward(const Call& call, const std::int32_t* ids, const ops::Matrix& out) const;
  void backward(const Call& call, const std::int32_t* ids, const ops::ConstMatrix& d_out) const;

 private:
  /// Rounded to the dtype of the table, as transformers rounds it.
  float scale(const Common& common) const;

  MatrixHandle table_;
  double scale_;
  std::int32_t padding_id_;
  bool sums_;  ///< over ranks: one of them has a token's row, the others have zeros
};

}  // namespace octet::model
