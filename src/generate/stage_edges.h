// Hidden states on their way from one stage of a pipeline to the next.
#pragma once

#include <memory>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/model/share.h"
#include "octet/ops/types.h"

namespace octet::generate {

/// What leaves a stage lies in one of as many buffers as there are stages but one, so that no stage waits for
/// one behind it before all of them have a pass to compute.
class StageEdges {
 public:
  /// `pipeline` (Team::pipeline) and `device` outlive this.
  StageEdges(comm::Collectives& pipeline, const model::Share& share, Device& device);
  void reserve(Arena& arena, std::int64_t rows, std::int64_t cols, DType dtype);

  /// The hidden states of a pass's tokens from the stage before, for work enqueued on `compute` behind; no
  /// data on the first stage.
  ops::ConstMatrix receive(Stream& compute, std::int64_t tokens);
  /// Where those for the next stage go, for work enqueued on `compute` behind; no data on the last stage.
  ops::Matrix place(Stream& compute, std::int64_t tokens);
  /// Sends what was put into the place that was asked for last.
  void send(Stream& compute);

 private:
  /// Stages alternate between the two queues, so that what a stage sends does not wait for what it receives.
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
  std::size_t next_ = 0;     ///< of out_
  std::int64_t tokens_ = 0;  ///< of the place that was asked for last
};

}  // namespace octet::generate
