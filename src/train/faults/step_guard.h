// Guards a run against bit errors, spikes and values that are not finite.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "faults/not_finite_steps.h"
#include "faults/rollbacks.h"
#include "faults/silent_faults.h"
#include "faults/spikes.h"
#include "octet/base/json_fwd.h"
#include "run_context.h"
#include "run_parts.h"
#include "saves/saves.h"

namespace octet::train {

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
