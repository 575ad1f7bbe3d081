// The checkpoints of a run on disk: their times, their results, the best of them, and the final model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "evaluations.h"
#include "octet/base/json_fwd.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/channel.h"
#include "run_context.h"
#include "saves/save_interval.h"
#include "saves/saver.h"

namespace octet::train {

// Tracks the checkpoint with the best figure of metric_for_best_model.

/// A checkpoint and the evaluation of its weights.
struct EvaluatedCheckpoint {
  std::int64_t step = -1;  ///< -1: no checkpoint
  double figure = 0;
  std::string path;
};

class BestCheckpoint {
 public:
  /// `wanted`: otherwise no checkpoint is the best.
  BestCheckpoint(bool wanted, FigureChoice choice) : wanted_(wanted), choice_(std::move(choice)) {}

  /// Whether a checkpoint of `step` would be the best. `latest` is the latest evaluation.
  bool is_beaten_by(const Evaluated& latest, std::int64_t step) const;
  /// Replaces the best checkpoint, which becomes the second best.
  void replace(const EvaluatedCheckpoint& best);
  /// Returns to the second best if the checkpoint of `step`, which is damaged, is the best. Returns whether
  /// it was the best.
  bool drop(std::int64_t step);
  /// Step of the best checkpoint; -1: none.
  std::int64_t step() const { return best_.step; }
  const EvaluatedCheckpoint& best() const { return best_; }

  /// Adds the best checkpoint to the state of a checkpoint.
  void add_to(Json& state) const;

 private:
  bool wanted_;
  FigureChoice choice_;
  EvaluatedCheckpoint best_, second_best_;
};

/// Returns the entry of an evaluated checkpoint in the state of a checkpoint.
Json best_entry(std::int64_t step, double figure, const FigureChoice& choice);

/// The newest checkpoint on disk of a run that resumes from memory.
struct OnDisk {
  std::int64_t step = -1;  ///< -1: none
  std::string path;
};

/// Functions that are not const are collective, except stepped() and wait_quietly().
class Saves {
 public:
  /// Returns the contents of a checkpoint without the slices.
  using Contents = std::function<checkpoint::CheckpointContents()>;

  /// `run`, `parts` and `evaluations` must outlive the object.
  Saves(RunContext& run, RunParts& parts, const Evaluations& evaluations, Contents contents);

  /// Opens the channel and locks the output folder.
  void open();
  /// Throws Error (storage) if the disk has no room for the files of the run.
  void require_disk() const;
  /// Moves checkpoints of an earlier run aside if overwrite_output_dir is set and the run starts fresh.
  void set_aside_earlier() const;
  /// Sets the newest checkpoint after a checkpoint was read. `disk`: the newest on disk if that checkpoint is
  /// in memory.
  void stand_at_checkpoint(const OnDisk& disk);
  /// Creates the automatic save interval, if configured.
  void make_interval();
  /// Creates the saver before the first step, and restores the best checkpoint of an earlier part of the run.
  void begin();
  /// Suppresses the warning about steps that wait for saves, if the user did not ask for concurrent saves.
  void wait_quietly() { told_that_it_waits_ = true; }

  /// Records the seconds of a step.
  void stepped(double seconds);
  /// Whether a save is due after the current step.
  bool is_due() const;
  /// Whether a save is due after a later step, as far as it is known in advance.
  bool plans(std::int64_t step) const;
  bool retries() const { return saver_->retries_at(run_.step); }
  bool gives_up() const { return saver_->gives_up(); }
  bool asks_to_settle() const { return saver_->asks_to_settle(); }
  /// Warns if a save is due while another is in flight: saves take longer than the steps between them.
  void tell_that_it_waits();
  /// Saves a checkpoint of this step. With save_async, only starts the save. If save_steps is automatic, the
  /// cost sets the next save.
  void save_and_measure();
  /// Handles the result of the last save. Waits for a concurrent save, or until the last checkpoint was read
  /// back.
  void settle();
  /// Saves, and retries once. Throws Error (unsaved) on all ranks if both folders fail.
  void save_for_good();
  /// Writes the final model or adapters. Local; called on the printing rank.
  void write_final_model() const;

  std::int64_t saved_step() const { return saved_step_; }  ///< of the newest checkpoint; -1: none
  const std::string& last_checkpoint() const { return last_checkpoint_; }
  /// Returns the number of checkpoints that this process has completed.
  std::int64_t completed() const { return completed_; }
  /// Step of the checkpoint that is the final model; -1: it has the last weights.
  std::int64_t model_step() const { return run_.config.load_best_model_at_end ? best_.step() : -1; }
  /// Step of the best checkpoint; -1: none.
  std::int64_t best_step() const { return best_.step(); }
  /// Adds the best checkpoint to the state of a checkpoint of this step.
  void add_best_to(Json& state) const;
  /// Like add_best_to(), for a checkpoint in memory. This step may not be on disk, so only the best
  /// checkpoint on disk counts, or a checkpoint that is being written.
  void add_best_on_disk_to(Json& state) const;

 private:
  void save();
  void begin_save();
  bool is_best() const { return best_.is_beaten_by(evaluations_.latest(), run_.step); }
  /// Records a new checkpoint. `best`: set if it has the best weights so far.
  void saved(const Ended& ended, const EvaluatedCheckpoint& best, double seconds);
  void restore_best();
  /// Whether this step is saved or being saved.
  bool has_this_step() const { return saved_step_ == run_.step || taken_.step == run_.step; }
  Turn turn() const;
  /// Returns the folder for checkpoints that do not fit in output_dir, or "".
  std::string fallback() const;

  RunContext& run_;
  RunParts& parts_;
  const Evaluations& evaluations_;
  Contents contents_;
  std::unique_ptr<comm::Channel> channel_;  ///< host-side channel for checkpoints
  std::unique_ptr<SaveInterval> interval_;  ///< if save_steps is automatic
  std::unique_ptr<Saver> saver_;  ///< reads the engine's snapshot and syncs the log until it is destroyed
  std::int64_t saved_step_ = -1;
  std::string last_checkpoint_;
  std::int64_t completed_ = 0;
  BestCheckpoint best_;
  EvaluatedCheckpoint taken_;  ///< of the save in flight: its step, and its figure if it is the best so far
  bool takes_best_ = false;
  bool told_that_it_waits_ = false;
};

}  // namespace octet::train
