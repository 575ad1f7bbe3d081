// The training steps of a run, the requests of ranks between them, and the samples that are logged.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "faults/step_guard.h"
#include "logs/step_report.h"
#include "octet/comm/channel.h"
#include "octet/feed/loader.h"
#include "run_context.h"
#include "saves/memory_saves.h"
#include "saves/saves.h"
#include "step_loop.h"

namespace octet::train {

// Logs which rows of the data set each step trained.

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

// Requests of the ranks between two steps.

struct Wishes {
  bool save = false;
  bool stop = false;
  bool settle = false;  ///< a concurrent save has ended
  bool data = false;    ///< the data of the rank are unreadable
};

/// Returns the requests of any rank. Collective.
Wishes wishes_of_all(comm::Channel& channel, const Wishes& own);

/// Takes the steps, and counts them in RunContext. All functions are collective.
class TrainSteps {
 public:
  /// All must outlive the object.
  TrainSteps(RunContext& run, RunParts& parts, StepGuard& guard, Saves& saves, MemorySaves& memory)
      : run_(run), parts_(parts), guard_(guard), saves_(saves), memory_(memory), report_(run, parts, guard) {}

  /// Sets the position of the run after a checkpoint was read.
  void stand_at_checkpoint();
  /// Starts or restarts the steps at that position.
  void start();
  /// Takes, checks and reports a step. If StepGuard::wants_back() is true afterwards, the run must return to
  /// a checkpoint. The step may then be incomplete. Throws feed::DataError if the data cannot be read.
  void take();

 private:
  /// Whether a checkpoint follows a step, as far as it is known in advance.
  bool plans_save(std::int64_t step) const;

  RunContext& run_;
  RunParts& parts_;
  StepGuard& guard_;
  Saves& saves_;
  MemorySaves& memory_;
  StepReport report_;
  std::unique_ptr<SampleLog> samples_;  ///< if configured
  std::unique_ptr<StepLoop> loop_;
};

}  // namespace octet::train
