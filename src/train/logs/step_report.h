// Reports the steps of a run: the row of the log, and warnings about experts without rows.
#pragma once

#include <cstdint>

#include "faults/step_guard.h"
#include "logs/expert_log.h"
#include "logs/rank_log.h"
#include "logs/step_watch.h"
#include "octet/store/options.h"
#include "run_context.h"
#include "run_parts.h"

namespace octet::train {

/// A complete step.
struct StepOutcome {
  store::StepResult result;
  double seconds = 0;
  double data_seconds = 0;  ///< waited for data
  MessageTime messages;
  std::string spike;  ///< description of a spike, or ""
};

class StepReport {
 public:
  /// All must outlive the object.
  StepReport(RunContext& run, RunParts& parts, const StepGuard& guard)
      : run_(run), parts_(parts), guard_(guard) {}

  /// Prepares the report of the next step. Discards traffic of evaluations and checkpoints.
  void begin();
  /// Reports the current step. Collective.
  void report(const StepOutcome& outcome);
  /// Starts again after a return to an earlier step.
  void restart() { own_loss_ = {}; }

 private:
  /// Whether a step writes a log row.
  bool logs_at(std::int64_t step) const;
  /// Whether rows include casts to FP8.
  bool watches_casts() const;

  RunContext& run_;
  RunParts& parts_;
  const StepGuard& guard_;
  OwnLoss own_loss_;  ///< since the last log row
  IdleExperts idle_experts_;
};

}  // namespace octet::train
