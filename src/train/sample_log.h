// Which rows of the data set each step trained, for who asks what a run has seen.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/feed/loader.h"

namespace octet::train {

/// samples.jsonl of an output folder: a line a step, {"step": 31, "rows": [[[4, 17], [2]], [[9], []]]}, in it
/// a list for each rank, in that one for each micro-batch, in that the rows of its documents. All ranks call
/// its functions alike; rank 0 writes.
class SampleLog {
 public:
  /// Keeps the lines of an earlier run up to `first_step`. Throws Error, on all ranks, where the file cannot
  /// be written.
  SampleLog(comm::Channel& channel, const std::string& output_dir, std::int64_t first_step);

  /// A micro-batch of this rank, of the step under way.
  void add(const runtime::HostBatch& batch) { own_.push_back(batch.rows); }
  /// Ends step `step`. A disk that takes nothing more is told of once, and does not end the run.
  void end_step(std::int64_t step);

 private:
  comm::Channel& channel_;
  std::vector<std::vector<std::int64_t>> own_;
  std::ofstream file_;  ///< of rank 0
  bool told_ = false;
};

}  // namespace octet::train
