// The log of a run: trainer_log.jsonl, the sums since its last row, and the files that are computed from its
// rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/json_fwd.h"
#include "octet/report/plot.h"
#include "octet/report/reporter.h"

namespace octet::report {

class RunLog {
 public:
  /// Keeps the rows of an earlier run up to `first_step` (none for 0). Drops later rows and a partial last
  /// line of a killed run. Opens the file for appending. Throws Error.
  RunLog(const std::string& path, std::int64_t first_step);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Appends a row. A full or failing disk does not end the run: rows then wait in memory until a later
  /// append() or flush() writes them. Both events are logged.
  void append(Json row);
  /// Tries to write the waiting rows. Returns how many rows still wait.
  std::int64_t flush();
  /// Blocks until the written rows would survive a power failure, if the disk allows it. Thread-safe with
  /// append().
  void sync() const;
  const std::vector<Json>& rows() const { return rows_; }
  /// Returns the number of dropped unreadable lines.
  int broken() const { return broken_; }

 private:
  std::string path_;
  int file_ = -1;
  int broken_ = 0;
  std::vector<Json> rows_;
  std::string waiting_;  ///< bytes not yet written; may begin within a row
  std::int64_t rows_waiting_ = 0;
};

/// Runs `write`. An Error gives a warning, because files for people must not end a run.
void write_or_warn(const std::function<void()>& write);

/// Returns the value of `key` in `row` as a number; NaN if it is absent, null or not a number.
double number_of(const Json& row, const char* key);

// Sums over steps.

/// Sums since the last log line, or since the start of this session.
struct Window {
  double loss = 0, seconds = 0, data_seconds = 0, comm_seconds = 0, exposed_seconds = 0;
  std::int64_t steps = 0, tokens = 0, label_tokens = 0, samples = 0;
  /// Steps of an earlier session among `steps`; only their losses are known.
  std::int64_t steps_before = 0;
  std::map<std::string, KindOfMessages> kinds;

  void add(const StepFacts& f) {
    loss += f.loss, seconds += f.seconds, data_seconds += f.data_seconds, comm_seconds += f.comm_seconds,
        exposed_seconds += f.comm_exposed_seconds;
    ++steps, tokens += f.tokens, label_tokens += f.label_tokens, samples += f.samples;
    for (const KindOfMessages& kind : f.comm_kinds) {
      kinds[kind.kind].seconds += kind.seconds;
      kinds[kind.kind].bytes += kind.bytes;
    }
  }
  double bytes() const {
    double sum = 0;
    for (const auto& [name, kind] : kinds) sum += static_cast<double>(kind.bytes);
    return sum;
  }
  /// Returns the share of communication that overlapped with computation.
  double hidden() const { return comm_seconds > 0 ? std::max(0.0, 1 - exposed_seconds / comm_seconds) : 1; }
  double mean_loss() const { return steps > 0 ? loss / static_cast<double>(steps) : 0; }
  /// Returns a sum divided by the steps of this session.
  double per_step(double x) const {
    const std::int64_t own = steps - steps_before;
    return own > 0 ? x / static_cast<double>(own) : 0;
  }
  double per_second(double x) const { return seconds > 0 ? x / seconds : 0; }
};

// Contents of the files of a run, computed from the rows of trainer_log.jsonl.

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

// Sums of a run in its checkpoints, so that a resumed run continues them.

/// Adds the steps in the rows of trainer_log.jsonl to `totals`. Invalid or out-of-range values in
/// rows are ignored.
void add_rows(const std::vector<Json>& rows, Totals& totals);

/// Adds two fields to Hugging Face's trainer_state.json: `since_last_log`, the losses of `window`, and
/// `so_far`, the sums of the run.
void add_sums(Json& state, const Totals& totals, const Window& window);

/// Replaces the sums of add_rows() by the sums in `state`, which add_sums() wrote. Invalid values are
/// ignored.
void take_over_state(const Json& state, Totals& totals, Window& window);

}  // namespace octet::report
