// Transfers hidden states from one pipeline stage to the next.
#pragma once

#include <memory>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/model/share.h"
#include "octet/ops/types.h"

namespace octet::generate {

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

}  // namespace octet::generate
