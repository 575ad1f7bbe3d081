#pragma once

#include "octet/ops/types.h"

namespace octet::model {

/// Sums the outputs of layers with inputs that are cut among the ranks of a tensor group (Share::sums). Each
/// rank has a partial sum.
class PartialSums {
 public:
  virtual ~PartialSums() = default;
  /// Enqueues an all-reduce of `values` in place, in the order of `compute`: [rows, cols], dense, f32 or
  /// bf16. The values are summed in fp32 in rank order and rounded once, so all ranks get the same bits. All
  /// ranks of the group must make the same call. `name` is for traces and must stay valid.
  virtual void reduce_partial(Stream& compute, const char* name, const ops::Matrix& values) = 0;
  /// Whether reduce_and_add() supports the shape and dtype of `values`. All ranks get the same answer.
  virtual bool adds(const ops::Matrix& /*values*/) const { return false; }
  /// Like reduce_partial(), but writes the rounded sum plus `addend`, rounded once more, to `to`. Both have
  /// the shape and dtype of `values`, and must not overlap. `values` are undefined afterwards.
  virtual void reduce_and_add(Stream& /*compute*/, const char* /*name*/, const ops::Matrix& /*values*/,
                              const ops::ConstMatrix& /*addend*/, const ops::Matrix& /*to*/) {}
};

}  // namespace octet::model
