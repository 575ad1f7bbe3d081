// Steps whose loss or gradient stands out from those before them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "octet/base/json_fwd.h"
#include "octet/ops/step_limits.h"
#include "octet/setup/fault_options.h"
#include "octet/store/options.h"

namespace octet::train {

/// The mean loss of the tokens with a label of a step; 0 without any.
double mean_loss(const store::StepResult& result);

/// Judges steps by medians of those before them. What it knows follows from the results of steps alone, which
/// are the same on all ranks, and lies in checkpoints, so that all ranks, and a run that goes on, judge
/// alike.
class Spikes {
 public:
  /// Steps that a median is taken of, and that there must be before anything is a spike.
  static constexpr std::size_t kMost = 100, kLeast = 10;

  explicit Spikes(const setup::SpikeOptions& options) : options_(options) {}

  /// What the next step may show at most.
  ops::StepLimits limits() const;
  /// The same for the store: where spikes are skipped.
  ops::StepLimits limits_of_update() const;
  /// Takes a step in and says what stands out of it, in words; empty: nothing. Values that are not finite are
  /// not taken in.
  std::string look(const store::StepResult& result);
  /// Spikes found since the run began, and in a row so far.
  std::int64_t found() const { return found_; }
  int in_a_row() const { return in_a_row_; }
  setup::SpikeAction action() const { return options_.action; }

  /// For a checkpoint; null where nothing is to be known.
  Json state() const;
  /// Throws Error for a state that none of these wrote; `where` names it.
  void restore(const Json& state, const std::string& where);

 private:
  setup::SpikeOptions options_;
  std::deque<double> losses_, norms_;  ///< of the last kMost steps, latest last
  std::int64_t found_ = 0;
  int in_a_row_ = 0;
};

}  // namespace octet::train
