// Contents of the files of a run, computed from the rows of trainer_log.jsonl.
#pragma once

#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/report/plot.h"
#include "octet/report/reporter.h"

namespace octet::report {

/// Sums over the whole run, resumed parts included.
struct Totals {
  std::int64_t step = 0;
  double epoch = 0;
  std::int64_t tokens = 0;
  double elapsed = 0;         ///< seconds of steps, evaluations and checkpoints
  double device_seconds = 0;  ///< `elapsed` and set-up, each times the ranks of its session
  std::int64_t skipped = 0;   ///< steps with a gradient that was not finite
  double loss_sum = 0;        ///< over the steps counted in loss_steps
  std::int64_t loss_steps = 0;
  double mean_loss() const;
};

/// Returns Hugging Face's trainer_state.json.
Json trainer_state(const RunFacts& facts, const Totals& totals, const std::vector<Json>& rows);

/// Returns a plot of the loss over steps, and of evaluation losses if there are any.
Figure loss_figure(const RunFacts& facts, const std::vector<Json>& rows, bool with_evaluation);

/// Returns README.md of the output folder.
std::string model_card(const RunFacts& facts, const std::vector<Json>& rows, const Json& results);

}  // namespace octet::report
