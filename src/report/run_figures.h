// The figures of a run: sums over its steps, and rates, costs and results that follow from them.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/report/reporter.h"
#include "run_log.h"

namespace octet::report {

/// Sums over the steps of a run and of this session. Rates are over all ranks, in tokens per second.
struct RunFigures {
  /// `of` must outlive this object.
  explicit RunFigures(const RunFacts& of) : facts(of) {}

  /// Restores the sums at first_step: exactly if the state of that step is known, else as far as the rows of
  /// the log give them. Counts the set-up of this session.
  void take_over(const std::vector<Json>& rows);
  /// Adds a step to all sums.
  void add(const StepFacts& step);
  /// Adds seconds of all ranks to the session.
  void pass(double seconds);

  bool knows_work() const { return facts.flops_per_token > 0; }
  bool knows_peak() const { return knows_work() && facts.peak_flops > 0; }
  /// Returns the model FLOP utilisation: 0 to 1.
  double utilisation(double tokens_per_second) const;
  /// Returns TFLOP/s per device.
  double teraflops(double tokens_per_second) const;
  /// Returns "MFU 41.2 %", or TFLOP/s if the peak of the device is unknown.
  std::string work_text(double tokens_per_second) const;
  /// Estimates the remaining time from this session's time per step, including evaluations and checkpoints.
  double remaining_seconds() const;
  double device_hours() const { return totals.device_seconds / 3600; }
  /// Returns the cost of the run, in the unit of RunFacts::gpu_hour_price.
  double cost() const { return device_hours() * facts.gpu_hour_price; }

  /// Returns the contents of train_results.json.
  Json train_results() const;
  /// Returns the rows of the summary, each with its name. The first is the status.
  std::vector<std::pair<std::string, std::string>> summary(const FinishFacts& finish) const;

  const RunFacts& facts;
  Totals totals;
  Window window, session;
  double session_elapsed = 0;  ///< seconds of steps, evaluations and checkpoints
  std::int64_t peak_memory = 0;
  double first_loss = NAN, last_loss = NAN, eval_loss = NAN;
  std::int64_t failed_saves = 0;  ///< in this session
};

}  // namespace octet::report
