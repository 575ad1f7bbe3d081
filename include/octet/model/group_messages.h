// Messages of the model among the ranks of a tensor group and of an expert group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "octet/device/device.h"
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

/// Messages among the ranks of an expert group (Share::expert_size). All ranks of the group make the same
/// calls.
class TokenExchange {
 public:
  virtual ~TokenExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns the numbers of all ranks, by rank: [size * own.size()]. Blocks the host.
  virtual std::vector<std::int32_t> gather(std::span<const std::int32_t> own) = 0;
  /// Calls `act`. If it throws Error on a rank of the group, all ranks of the group throw. Other ranks of the
  /// job do not. Blocks the host.
  virtual void together(const std::function<void()>& act) = 0;

  /// Rows of equal size in device memory, by the rank of the group that they are sent to or come from.
  struct Rows {
    const void* from = nullptr;
    std::span<const std::int64_t> sent;      ///< [size] rows for each rank, this rank too
    void* to = nullptr;                      ///< does not overlap `from`
    std::span<const std::int64_t> received;  ///< [size] rows from each rank
    std::size_t row_bytes = 0;
  };
  /// Enqueues the exchange after the earlier work of `compute`. `name` is for traces and must stay valid.
  /// Work on `compute` before finish() overlaps with the messages. It must not access the rows, and no other
  /// exchange may start.
  virtual void start(Stream& compute, const char* name, const Rows& rows) = 0;
  /// Makes `compute` wait for the exchange that was started.
  virtual void finish(Stream& compute) = 0;
  /// Enqueues the whole exchange in the order of `compute`.
  void exchange(Stream& compute, const char* name, const Rows& rows) {
    start(compute, name, rows);
    finish(compute);
  }
};

}  // namespace octet::model
