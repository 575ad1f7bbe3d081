// Guards a run against bit errors, spikes and values that are not finite.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "faults/silent_faults.h"
#include "octet/base/json_fwd.h"
#include "octet/ops/step_checks.h"
#include "octet/setup/run_options.h"
#include "octet/store/placement.h"
#include "run_context.h"
#include "saves/saves.h"

namespace octet::train {

// Counts steps with a loss or gradient that is not finite.

/// Whether a step with label tokens made no update.
bool was_skipped(const store::StepResult& result);

class NotFiniteSteps {
 public:
  /// Steps in a row after which the run fails.
  static constexpr int kMost = 5;

  /// Adds a step. Returns whether its loss and its gradient are finite. `spike`: the step is a spike, which
  /// may be skipped although its values are finite.
  bool add(const store::StepResult& result, bool spike);
  int in_a_row() const { return in_a_row_; }
  bool too_many() const { return in_a_row_ >= kMost; }
  /// Restores the count from the state of a checkpoint, so that repeated restarts also reach the limit.
  void restore(const Json& state, const std::string& where);

 private:
  int in_a_row_ = 0;
};

// Counts the returns of a run to a checkpoint.

/// Whether the run must roll back, and whether it then skips the data since the checkpoint.
enum class Back { no, same_data, other_data };

class Rollbacks {
 public:
  /// Most rollbacks without a checkpoint in between.
  static constexpr int kMost = 3;

  void request(Back how) { requested_ = how; }
  bool requested() const { return requested_ != Back::no; }
  /// Returns the request and clears it.
  Back take();
  /// Counts a rollback. `completed`: checkpoints that this process has completed. Returns whether there were
  /// too many rollbacks without a new checkpoint.
  bool begin(std::int64_t completed);
  /// Rollbacks since the run began, also before a restart.
  std::int64_t count() const { return count_; }
  /// Restores the count from a checkpoint, which may be older than the latest rollback.
  void restore(std::int64_t count);

 private:
  Back requested_ = Back::no;
  std::int64_t count_ = 0;
  int in_a_row_ = 0;            ///< without a checkpoint in between
  std::int64_t completed_ = 0;  ///< at the last rollback
};

// Detects steps with a loss or gradient norm far above the previous steps.

/// Returns the mean loss of the label tokens of a step; 0 without any.
double mean_loss(const store::StepResult& result);

/// Compares each step with medians of the previous steps. Its state depends only on results of steps, which
/// are equal on all ranks, and is stored in checkpoints. So all ranks, and a resumed run, decide alike.
class Spikes {
 public:
  /// Most steps in a median, and the fewest steps before any step is a spike.
  static constexpr std::size_t kMost = 100, kLeast = 10;

  explicit Spikes(const setup::SpikeOptions& options) : options_(options) {}

  /// Largest loss and gradient norm of a normal next step.
  ops::StepLimits limits() const;
  /// Limits above which the store skips the update, if spikes are skipped.
  ops::StepLimits limits_of_update() const;
  /// Adds a step. Returns a description of its spike, or "". Values that are not finite are not added.
  std::string look(const store::StepResult& result);
  /// Spikes since the run began, and spikes in a row.
  std::int64_t found() const { return found_; }
  int in_a_row() const { return in_a_row_; }
  setup::SpikeAction action() const { return options_.action; }

  /// State for a checkpoint; null if spikes are not detected.
  Json state() const;
  /// Throws Error for a state that state() did not write; `where` names it.
  void restore(const Json& state, const std::string& where);

 private:
  setup::SpikeOptions options_;
  std::deque<double> losses_, norms_;  ///< of the last kMost steps, oldest first
  std::int64_t found_ = 0;
  int in_a_row_ = 0;
};

/// Checks each step, and the weights before they are saved. A check that fails ends the run or requests a
/// rollback. Functions that are not const are collective.
class StepGuard {
 public:
  /// `run`, `parts` and `saves` must outlive the object.
  StepGuard(RunContext& run, RunParts& parts, Saves& saves) : run_(run), parts_(parts), saves_(saves) {}

  /// Creates the checks after the engine was built.
  void make();
  /// Restores the counts of steps that are not finite, spikes and rollbacks from the run's checkpoint.
  void stand_at_checkpoint();
  /// Adds spikes and rollbacks to the state of a checkpoint.
  void add_to(Json& state) const;
  int not_finite_in_a_row() const { return not_finite_.in_a_row(); }
  /// Returns fields for log rows.
  std::vector<std::pair<std::string, std::int64_t>> counts() const;

  /// Limits above which the store skips an update.
  ops::StepLimits limits_of_update() const { return spikes_->limits_of_update(); }
  /// Reads the micro-batches of the next step in advance if one of them is replayed. Adds the seconds of
  /// waiting to *waited.
  std::vector<runtime::HostBatch> batches_ahead(double* waited);
  /// Returns the check between the last micro-batch and the update of the next step; empty: none.
  std::function<bool()> check_of_update();
  /// Called after the update of a step, and after the state was loaded. `saves_next`: a checkpoint follows
  /// the next step.
  void updated(bool saves_next);
  void loaded(bool saves_next);
  /// Adds a step. Returns a description of its spike, or "".
  std::string look(const store::StepResult& result) { return spikes_->look(result); }
  /// Applies spike_action to the step. Throws Error after too many steps in a row with a loss or gradient
  /// that is not finite.
  void judge(const store::StepResult& result, const std::string& spike);

  /// Checks the state before it is saved. Returns false if the run must roll back.
  bool may_be_saved();
  /// Throws Error if no step of the run has changed the weights.
  void require_updates();

  /// Whether a check or a step requested a rollback.
  bool wants_back() const { return rollbacks_.requested(); }
  /// Returns the request and clears it.
  Back take_wish() { return rollbacks_.take(); }
  /// Counts a rollback, and returns the newest checkpoint. No save may be in flight. Throws Error if there is
  /// no checkpoint, or after too many rollbacks without a new one.
  std::string checkpoint_to_return_to(Back how);

 private:
  void restore_checks();
  /// Returns advice on where to restart after a bit error.
  std::string back_to() const;
  /// Handles the faults of a check; returns true if there are none. Otherwise throws Error if the run must
  /// stop, or requests a rollback.
  bool agreed(const std::vector<Fault>& faults, std::int64_t step);
  /// Applies spike_action to a step that is an outlier. `what` describes it.
  void stands_out(const std::string& what, bool was_used);
  /// Warns of a tensor of the base that is not finite, once.
  void look_at_base();
  /// Returns false if the run must roll back. Throws Error if a weight is not finite and the run must stop.
  bool weights_are_finite();

  RunContext& run_;
  RunParts& parts_;
  Saves& saves_;
  std::optional<Spikes> spikes_;
  std::unique_ptr<SilentFaults> faults_;  ///< if bit errors are checked
  NotFiniteSteps not_finite_;
  Rollbacks rollbacks_;
  bool looked_at_base_ = false;
  std::string base_wrong_;  ///< result of base_not_finite()
};

}  // namespace octet::train
