// One run of the trainer: its start, its steps and its end.
#pragma once

#include <string>
#include <vector>

#include "evaluations.h"
#include "faults/step_guard.h"
#include "octet/checkpoint/save.h"
#include "octet/config/config.h"
#include "octet/runtime/session.h"
#include "run_context.h"
#include "run_parts.h"
#include "saves/memory_saves.h"
#include "saves/saves.h"
#include "sizing/sizing.h"
#include "start/run_start.h"
#include "start/start_notes.h"
#include "train_steps.h"
#include "wishes.h"

namespace octet::train {

/// One run, from its configuration to its last line. It calls its objects in order, and holds no other state.
/// All functions are collective unless they are const.
class Run {
 public:
  Run(runtime::Session& session, const config::Resolved& resolved) : run_(session, resolved) {}

  /// Returns the exit code of the run.
  int run();

 private:
  void prepare();
  /// Makes the engine, and loads the checkpoint or the base.
  void prepare_engine();
  void begin_steps();
  /// Takes a step. If the data cannot be read, saves the complete steps before the error ends the run.
  void train_step();
  /// Saves the checkpoints that are due after a step. Returns false if the run has returned to a checkpoint
  /// instead.
  bool save_in_turn(const Wishes& wishes, bool stopped);
  void keep_before_data_error();
  /// Rolls back to the newest checkpoint if a check or a step requested it. Returns whether it did.
  bool goes_back();
  /// Restores counters from the checkpoint that was read.
  void stand_at_checkpoint();
  /// Returns the contents of a checkpoint without the slices.
  checkpoint::CheckpointContents checkpoint_contents() const;
  void finish(bool stopped);
  /// Returns the commands to show at the end. `kept`: the last checkpoint is kept.
  std::vector<std::string> last_commands(bool stopped, bool kept) const;

  RunContext run_;
  RunParts parts_;
  Evaluations evaluations_{run_, parts_};
  Saves saves_{run_, parts_, evaluations_, [this] { return checkpoint_contents(); }};
  MemorySaves memory_saves_{run_, parts_, saves_, [this] { return checkpoint_contents(); }};
  StepGuard guard_{run_, parts_, saves_};
  TrainSteps steps_{run_, parts_, guard_, saves_, memory_saves_};
  Sizing sizing_{run_, parts_};
  StartNotes notes_{run_, parts_, sizing_, saves_};
  RunStart start_{run_, parts_, sizing_, evaluations_, notes_};
};

}  // namespace octet::train
