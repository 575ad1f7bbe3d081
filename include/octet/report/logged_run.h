// The log of a run (trainer_log.jsonl), read back.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "octet/base/json.h"

namespace octet::report {

/// The logged steps of a run.
struct LoggedRun {
  std::string name;
  std::map<std::int64_t, Json> steps;
  double eval_loss = NAN;  ///< the last
};

/// Reads the log of a run: its output folder, or the log itself. Skips lines that are being written or were
/// cut short. Throws Error (usage) if no step is logged.
LoggedRun read_run(const std::string& path);

/// Returns a number of a row; NaN if there is none.
double logged_number(const Json& row, const char* key);
/// Returns the mean of a column over the rows from step `first` on; NaN if there are none.
double mean_of(const LoggedRun& run, const char* key, std::int64_t first = 0);

/// Relative difference between the losses of two runs, over the steps that both runs logged.
struct Distance {
  std::int64_t steps = 0, most_at = 0;
  double mean = 0, most = 0;  ///< relative
};

Distance distance(const LoggedRun& a, const LoggedRun& b);

}  // namespace octet::report
