// Counts steps with a loss or gradient that is not finite.
#pragma once

#include <string>

#include "octet/base/json_fwd.h"
#include "octet/store/options.h"

namespace octet::train {

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

}  // namespace octet::train
