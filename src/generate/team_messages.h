// Messages of a decoder among the ranks of its team: partial sums, and hidden states at the edges of a stage.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/model/group_messages.h"
#include "octet/model/share.h"
#include "octet/ops/types.h"

namespace octet::generate {

// Transfers hidden states from one pipeline stage to the next.

/// A stage writes its output to one of (stages - 1) buffers in turn. So no stage waits for a later stage
/// until every stage has a pass to compute.
class StageEdges {
 public:
  /// `pipeline` (Team::pipeline) and `device` outlive this.
  StageEdges(comm::Collectives& pipeline, const model::Share& share, Device& device);
  void reserve(Arena& arena, std::int64_t rows, std::int64_t cols, DType dtype);

  /// Returns the hidden states from the previous stage, for later work on `compute`. Empty on the first
  /// stage.
  ops::ConstMatrix receive(Stream& compute, std::int64_t tokens);
  /// Returns the buffer for the next stage, for later work on `compute`. Empty on the last stage.
  ops::Matrix place(Stream& compute, std::int64_t tokens);
  /// Sends the buffer that place() returned last.
  void send(Stream& compute);

 private:
  /// Stages alternate between two queues, so a stage's sends do not wait for its receives.
  Stream& stream_from(int stage) {
    return stage % 2 == 0 ? pipeline_.gather_stream() : pipeline_.reduce_stream();
  }
  int number_of(int stage) const { return share_.stages - 1 - stage; }
  std::int64_t bytes(std::int64_t tokens) const {
    return tokens * in_.cols * static_cast<std::int64_t>(size_of(in_.dtype));
  }

  struct Out {
    ops::Matrix states;
    std::unique_ptr<Event> sent;
  };
  comm::Collectives& pipeline_;
  model::Share share_;
  Device& device_;
  std::unique_ptr<Event> ready_, came_, read_;
  ops::Matrix in_;
  std::vector<Out> out_;
  std::size_t next_ = 0;     ///< index into out_
  std::int64_t tokens_ = 0;  ///< of the buffer that place() returned last
};

// Sums over the ranks of a tensor group, after layers with split inputs.

/// If GPUs can access each other's memory, one kernel sums short messages directly. Otherwise a short message
/// takes one exchange: every rank gets all parts and adds them. A long message takes two: each rank adds one
/// slice, then all ranks gather the slices. All ways add in rank order, in fp32, and give the same bits.
class TensorSums final : public model::PartialSums {
 public:
  /// Largest part in bytes that is sent whole to all ranks.
  static constexpr std::size_t kOneShotBytes = std::size_t{256} << 10;

  /// `tensor` and `device` outlive this.
  TensorSums(comm::Collectives& tensor, Device& device);
  /// Reserves receive buffers for sums of up to [rows, cols]. Call before the first sum.
  void reserve(Arena& arena, std::int64_t rows, std::int64_t cols, DType dtype);
  /// Returns up to how many rows of `cols` values the sums are direct, so that passes with them can be
  /// recorded.
  std::int64_t direct_rows(std::int64_t cols, DType dtype) const;
  void reduce_partial(Stream& compute, const char* name, const ops::Matrix& values) override;
  bool adds(const ops::Matrix& values) const override;
  void reduce_and_add(Stream& compute, const char* name, const ops::Matrix& values,
                      const ops::ConstMatrix& addend, const ops::Matrix& to) override;

 private:
  void in_one_exchange(Stream& compute, const char* name, const ops::Matrix& values);
  void in_two(Stream& compute, const char* name, const ops::Matrix& values);

  comm::Collectives& tensor_;
  Device& device_;
  std::unique_ptr<Event> ready_, done_;
  std::byte* parts_ = nullptr;   ///< [ranks, a part] of a short message
  std::byte* slices_ = nullptr;  ///< a long message, padded to a multiple of the number of ranks
  std::size_t slices_bytes_ = 0;
};

}  // namespace octet::generate
