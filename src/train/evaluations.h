// The evaluations of a run: the steps at which they are due, and the schedules that follow their losses.
#pragma once

#include <cstdint>
#include <string>

#include "best_figure.h"
#include "octet/base/json_fwd.h"
#include "octet/optim/schedule.h"
#include "octet/setup/run_options.h"
#include "run_context.h"

namespace octet::train {

// After which steps a run evaluates and saves.

/// How often the configuration repeats an action.
struct Turn {
  setup::When when = setup::When::never;
  double interval = 1;  ///< in steps, or a share of all steps below 1; for When::steps
};

/// Whether the action is due after `step`, a complete step of `total`. `ends_epoch`: the step ends an epoch.
bool is_turn(const Turn& turn, std::int64_t step, std::int64_t total, bool ends_epoch);

/// Like is_turn(), for a later step. `epoch`: steps of an epoch; 0 if unknown. Then no step is planned for
/// When::epoch.
bool is_planned(const Turn& turn, std::int64_t step, std::int64_t total, std::int64_t epoch);

// The state of reduce_lr_on_plateau in a checkpoint.

Json plateau_json(const optim::Plateau::State& state);

/// Reads what plateau_json() wrote. Throws Error for other values; `where` names them.
optim::Plateau::State read_plateau(const Json& saved, const std::string& where);

/// An evaluation of the weights after a step.
struct Evaluated {
  std::int64_t step = -1;  ///< -1: no evaluation
  double figure = 0;       ///< the value of metric_for_best_model
};

class Evaluations {
 public:
  /// Both must outlive the object.
  Evaluations(RunContext& run, RunParts& parts)
      : run_(run), parts_(parts), best_(figure_choice(run.config), run.config.early_stopping_steps) {}

  /// Evaluates if eval_strategy and eval_steps require it. Gives the loss to the schedule. Collective.
  void evaluate_in_turn();
  /// Before a step: evaluates the untrained model with eval_on_start. If the resumed run stopped before an
  /// evaluation that changes its course, evaluates now. Collective.
  void make_up();
  /// Whether early_stopping_steps ends the run after this step.
  bool ends_run() const { return best_.ends_run(); }
  /// Whether this step has an evaluation that is better than all before.
  bool improved() const { return best_.improved_at(run_.step); }
  /// Whether an evaluation is due after a later step, as far as it is known in advance.
  bool plans(std::int64_t step) const;
  /// Forgets the latest evaluation, because the run has returned to an earlier step.
  void forget_latest() { latest_ = {}; }
  const Evaluated& latest() const { return latest_; }
  /// Returns the best evaluation of this process, also if it belongs to no turn or to no checkpoint.
  const Evaluated& best() const { return best_evaluation_; }
  const FigureChoice& figure() const { return best_.choice(); }

  /// Adds the state of the schedule and of the best figure to the state of a checkpoint.
  void add_to(Json& state) const;
  /// Restores both from the run's checkpoint, if there is one. The schedule is new.
  void take_over();

 private:
  /// `epoch`: passes over the data so far.
  void evaluate(double epoch);
  /// Gives the latest evaluation to the schedule and to `best_`.
  void tell();
  void tell_schedule();
  bool is_due() const;
  Turn turn() const;
  /// Whether checkpoints hold the state of `best_`: early_stopping_steps or save_strategy: best reads it.
  bool keeps_figure() const;

  RunContext& run_;
  RunParts& parts_;
  bool owed_ = false;  ///< the resumed run stopped before an evaluation that changes its course
  double latest_loss_ = 0;
  Evaluated latest_, best_evaluation_;
  BestFigure best_;
};

}  // namespace octet::train
