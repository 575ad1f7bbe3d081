// State of a reporter, and the formatting of its output.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/report/number.h"
#include "octet/report/progress.h"
#include "octet/report/reporter.h"
#include "octet/report/tfevents.h"
#include "progress_bar.h"
#include "run_log.h"
#include "words.h"

namespace octet::report {

struct Reporter::Impl {
  RunFacts facts;
  RunLog log;
  ProgressBar bar;
  std::unique_ptr<EventFile> events;
  std::unique_ptr<ProgressFile> progress_file;  ///< for a supervisor; null without one
  Progress progress;
  Totals totals;
  Window window, session;
  double session_elapsed = 0;  ///< seconds of steps, evaluations and checkpoints
  std::int64_t peak_memory = 0;
  double first_loss = NAN, last_loss = NAN, eval_loss = NAN;
  Json eval_results;
  std::string last_checkpoint;
  std::int64_t failed_saves = 0;  ///< in this session

  explicit Impl(RunFacts f);

  struct BannerLine {
    std::string text;
    bool shown = false;  ///< on the screen; otherwise only logged
  };
  std::vector<BannerLine> banner() const;

  // Restores the sums at first_step: exactly if the state of that step is known, else as far as the rows give
  // them.
  void take_over() {
    for (const Json& row : log.rows()) {
      if (row.contains("eval_loss")) eval_loss = number_of(row, "eval_loss");
      if (!row.contains("loss")) continue;
      last_loss = number_of(row, "loss");
      if (std::isnan(first_loss)) first_loss = last_loss;
    }
    totals.step = facts.first_step;
    add_rows(log.rows(), totals);
    totals.device_seconds = totals.elapsed * static_cast<double>(facts.world);
    if (facts.first_step == 0) return;
    const Json state = facts.resumed->is_object() ? *facts.resumed : state_of_folder();
    if (state.is_object() && number_of(state, "global_step") == static_cast<double>(facts.first_step)) {
      take_over_state(state, totals, window);
    }
  }

  Json state_of_folder() const {
    const std::string path = facts.output_dir + "/trainer_state.json";
    if (!path_exists(path)) return {};
    try {
      return read_json(path);
    } catch (const Error& e) {
      log::warn(std::string("trainer_state.json is not read: ") + e.what());
      return {};
    }
  }

  /// Adds seconds of all ranks to the session.
  void pass(double seconds) {
    session_elapsed += seconds;
    totals.elapsed += seconds;
    totals.device_seconds += seconds * static_cast<double>(facts.world);
  }

  bool logs_at(std::int64_t step) const {
    return is_logged(step, facts.logging_steps, facts.logging_first_step, facts.total_steps);
  }

  bool knows_work() const { return facts.flops_per_token > 0; }
  bool knows_peak() const { return knows_work() && facts.peak_flops > 0; }
  double utilisation(double tokens_per_second) const {
    return flop_utilisation(facts.flops_per_token, tokens_per_second, facts.world, facts.peak_flops);
  }
  /// Returns TFLOP/s per device.
  double teraflops(double tokens_per_second) const {
    return 1e-12 * facts.flops_per_token * tokens_per_second / static_cast<double>(facts.world);
  }
  /// Returns "MFU 41.2 %", or TFLOP/s if the peak of the device is unknown.
  std::string work_text(double tokens_per_second) const {
    if (knows_peak()) return "MFU " + python_number(100 * utilisation(tokens_per_second), 3) + " %";
    return python_number(teraflops(tokens_per_second), 3) + " TFLOP/s";
  }

  // Estimates the remaining time from this session's time per step, including evaluations and checkpoints.
  double remaining_seconds() const {
    return session.per_step(session_elapsed) *
           static_cast<double>(std::max<std::int64_t>(0, facts.total_steps - totals.step));
  }
  double device_hours() const { return totals.device_seconds / 3600; }
  double cost() const { return device_hours() * facts.gpu_hour_price; }

  Json row_of(std::int64_t step) const {
    Json row;
    row["current_steps"] = step;
    row["total_steps"] = facts.total_steps;
    return row;
  }

  void finish_row(Json& row, double epoch) const {
    row["epoch"] = epoch;
    row["percentage"] = facts.total_steps > 0 ? std::round(1e4 * static_cast<double>(row["current_steps"]) /
                                                           static_cast<double>(facts.total_steps)) /
                                                    100
                                              : 100.0;
    row["elapsed_time"] = clock_time(totals.elapsed);
    row["remaining_time"] = clock_time(remaining_seconds());
    row["elapsed_seconds"] = totals.elapsed;
  }

  void tell_progress() {
    if (progress_file) progress_file->write(progress);
  }
  void log_step(const StepFacts& f);
  void write_events(const StepFacts& f, double loss, double seconds, double rate);
  Json state(bool with_history) const;
  void write_state() const;
  void write_plots() const;
  Json train_results() const;
  void summary(const FinishFacts& facts) const;
};

}  // namespace octet::report
