// Starts a run, fresh or from a checkpoint: the model, the data, the schedule and the engine.
#pragma once

#include <string>

#include "evaluations.h"
#include "octet/base/json_fwd.h"
#include "octet/checkpoint/checkpoint.h"
#include "run_context.h"
#include "saves/saves.h"
#include "sizing/sizing.h"
#include "start/start_notes.h"

namespace octet::train {

/// Functions that are not const are collective.
class RunStart {
 public:
  /// All must outlive the object.
  RunStart(RunContext& run, RunParts& parts, Sizing& sizing, Evaluations& evaluations,
           const StartNotes& notes)
      : run_(run), parts_(parts), sizing_(sizing), evaluations_(evaluations), notes_(notes) {}

  /// Reads the model and its tokenizer, and refuses models that cannot be built.
  void read_model();
  /// Opens the newest checkpoint in memory or on disk, if any.
  void open_checkpoint();
  /// Reads the data.
  void read_data();
  /// Moves the feed to the position of the checkpoint, if there is one.
  void continue_data();
  void prepare_schedule();
  /// Builds the engine and loads it from the checkpoint. Falls back to older checkpoints if it is damaged.
  void make_engine();
  /// Sets the initial parameters of a run, which the checkpoint does not hold.
  void begin_weights();
  /// Logs differences between the run of the checkpoint and this run. On the printing rank.
  void say_differences() const;

  /// Loads the engine from the checkpoint at `path`, to which the run returns.
  void read_again(const std::string& path);
  /// Restarts data and schedule at that checkpoint. `place`: another position in the data, or null.
  void restart_data(const Json* place);

  /// Returns the start of the run, in words of report::Progress.
  const std::string& from() const { return from_; }
  /// Returns the newest checkpoint on disk if the run resumes from memory.
  const OnDisk& on_disk() const { return on_disk_; }

 private:
  /// Reads the file of the teacher, with stage: kd. Collective.
  void read_teacher();
  void open(const std::string& path);
  /// Resumes from an open checkpoint.
  void open(checkpoint::Checkpoint&& checkpoint);
  /// Loads the engine from the checkpoint. Returns a description of damage, equal on all ranks, or "".
  std::string read_checkpoint();
  /// Opens the previous checkpoint, which has another position in the data and the schedule.
  void fall_back(const std::string& why);
  void set_schedule();
  /// Warns if the samples per step differ from the run of the checkpoint.
  void say_batch() const;

  RunContext& run_;
  RunParts& parts_;
  Sizing& sizing_;
  Evaluations& evaluations_;
  const StartNotes& notes_;
  OnDisk on_disk_;
  std::string from_;
};

}  // namespace octet::train
