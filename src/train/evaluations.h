// The evaluations of a run, and the learning rate that follows them (reduce_lr_on_plateau).
#pragma once

#include <cstdint>

#include "octet/base/json_fwd.h"
#include "run_context.h"
#include "run_parts.h"

namespace octet::train {

/// The loss of an evaluation of the weights after a step.
struct Evaluated {
  std::int64_t step = -1;  ///< -1: no evaluation
  double loss = 0;
};

class Evaluations {
 public:
  /// Both must outlive the object.
  Evaluations(RunContext& run, RunParts& parts) : run_(run), parts_(parts) {}

  /// Evaluates if eval_strategy and eval_steps require it. Gives the loss to the schedule. Collective.
  void evaluate_in_turn();
  /// If the resumed run stopped before an evaluation that sets the learning rate, evaluates now. Collective.
  void make_up();
  /// Forgets the latest evaluation, because the run has returned to an earlier step.
  void forget_latest() { latest_ = {}; }
  const Evaluated& latest() const { return latest_; }
  /// Returns the evaluation of this process with the lowest loss.
  const Evaluated& lowest() const { return lowest_; }

  /// Adds the state of the schedule to the state of a checkpoint.
  void add_to(Json& state) const;
  /// Restores it into a new schedule from the run's checkpoint, if there is one.
  void take_over();

 private:
  /// `epoch`: passes over the data so far.
  void evaluate(double epoch);
  void tell_schedule();
  bool is_due() const;

  RunContext& run_;
  RunParts& parts_;
  bool owed_ = false;  ///< the resumed run stopped before an evaluation that sets the learning rate
  Evaluated latest_, lowest_;
};

}  // namespace octet::train
