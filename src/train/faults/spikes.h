// Detects steps with a loss or gradient norm far above the previous steps.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "octet/base/json_fwd.h"
#include "octet/ops/step_limits.h"
#include "octet/setup/fault_options.h"
#include "octet/store/options.h"

namespace octet::train {

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

}  // namespace octet::train
