// Logs which rows of the data set each step trained.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/feed/loader.h"

namespace octet::train {

/// samples.jsonl of an output folder, one line per step: {"step": 31, "rows": [[[4, 17], [2]], [[9], []]]}.
/// The levels of `rows` are: ranks, micro-batches, rows of the documents. All functions are collective; rank
/// 0 writes.
class SampleLog {
 public:
  /// Keeps the lines of an earlier run up to `first_step`. Throws Error on all ranks if the file is not
  /// writable.
  SampleLog(comm::Channel& channel, const std::string& output_dir, std::int64_t first_step);

  /// Adds a micro-batch of this rank in the current step.
  void add(const runtime::HostBatch& batch) { own_.push_back(batch.rows); }
  /// Ends step `step`. A failed write is reported once and does not end the run.
  void end_step(std::int64_t step);

 private:
  comm::Channel& channel_;
  std::vector<std::vector<std::int64_t>> own_;
  std::ofstream file_;  ///< on rank 0
  bool told_ = false;
};

}  // namespace octet::train
