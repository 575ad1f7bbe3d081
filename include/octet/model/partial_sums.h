#pragma once

#include "octet/ops/types.h"

namespace octet::model {

/// What layers whose inputs are cut among the ranks of a tensor group (Share::sums) leave to others: each
/// rank has a part of a sum.
class PartialSums {
 public:
  virtual ~PartialSums() = default;
  /// Enqueues, between what is enqueued on `compute` before and after, that `values` become their sum over
  /// the ranks: [rows, cols], dense, f32 or bf16, in place, summed in fp32 in rank order and rounded once, so
  /// that all ranks hold the same bits. All ranks of the group call it alike. `name` lives on: for traces.
  virtual void reduce_partial(Stream& compute, const char* name, const ops::Matrix& values) = 0;
  /// Whether reduce_and_add() takes `values`, of the same form on all ranks.
  virtual bool adds(const ops::Matrix& /*values*/) const { return false; }
  /// The same, and `to` becomes the rounded sum plus `addend`, rounded once more: both as `values`, apart
  /// from each other. `values` are left undefined.
  virtual void reduce_and_add(Stream& /*compute*/, const char* /*name*/, const ops::Matrix& /*values*/,
                              const ops::ConstMatrix& /*addend*/, const ops::Matrix& /*to*/) {}
};

}  // namespace octet::model
