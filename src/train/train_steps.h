// The training steps of a run.
#pragma once

#include <cstdint>
#include <memory>

#include "faults/step_guard.h"
#include "logs/sample_log.h"
#include "logs/step_report.h"
#include "run_context.h"
#include "run_parts.h"
#include "saves/memory_saves.h"
#include "saves/saves.h"
#include "steps.h"

namespace octet::train {

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
