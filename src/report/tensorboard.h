// The scalars of a run in TensorBoard.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/report/reporter.h"
#include "octet/report/tfevents.h"
#include "run_figures.h"

namespace octet::report {

/// Writes an event file with the tags of Hugging Face and Octet. After the constructor, an error of the disk
/// gives a warning.
class TensorBoard {
 public:
  /// Opens a file in logging_dir, or in output_dir/runs/DATE_HOST. A resumed run uses the newest folder of
  /// output_dir/runs. Throws Error.
  explicit TensorBoard(const RunFacts& facts);

  /// Writes the scalars of a step that is logged, with the means since the last logged step.
  void step(const StepFacts& step, const RunFigures& run);
  void evaluation(const EvalFacts& evaluation);
  /// Writes the results of the session at the last step. `train`: see RunFigures::train_results().
  void results(const Json& train, const RunFigures& run);
  std::string folder() const;

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  void write(std::int64_t step, const Scalars& scalars);

  EventFile file_;
};

}  // namespace octet::report
