// A progress bar like tqdm's on standard error. On a terminal it is redrawn in place at least every second.
// In a file it is a line, printed if nothing else was printed for 30 seconds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <string>
#include <thread>

#include "octet/base/timing.h"

namespace octet::report {

/// Returns " 12%|███        | 10/84 [01:20<09:52,  8.01s/it]" with `cells` cells of bar. Rates are always
/// seconds per step, because tools compare them. `left` is in seconds. A rate of 0 is unknown.
std::string bar_text(std::int64_t done, std::int64_t total, double elapsed, double seconds_per_step,
                     double left, int cells);

/// Returns "01:20" below an hour, "1:01:20" from there on.
std::string bar_time(double seconds);

/// Seconds between drawings: `redraw` is the least for a bar, `life` the most without a new step, and `line`
/// is for lines in a file.
struct BarPace {
  double redraw = 0.1, life = 1, line = 30;
  /// The number of lines of the whole run. Up to 20 lines are all printed, regardless of time.
  std::int64_t lines = 0;
};

/// Only one bar may exist at a time. octet::log clears and redraws it around its lines.
class ProgressBar {
 public:
  /// `done` of `total` steps are finished at the start.
  ProgressBar(std::int64_t done, std::int64_t total, BarPace pace = {});
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void start();
  /// Reports progress. `left` is the expected remaining time in seconds.
  void advance(std::int64_t done, double seconds_per_step, double left);
  void finish();
  /// Whether a line of progress is due on the screen: always on a terminal and in a short run. Otherwise a
  /// file gets the first line, the line of the last step, and a line 30 seconds after the previous one. The
  /// caller then prints one.
  bool line_is_due();

 private:
  static void before_line();
  static void after_line();
  void draw();
  void clear();
  void print_line();
  void put(const std::string& text);
  void show_life();

  BarPace pace_;
  std::int64_t done_, total_;
  double seconds_per_step_ = 0, left_ = 0;
  /// terminal_: standard error is a terminal, or launch/mpirun draws on one with launcher_columns_ columns.
  bool terminal_ = false, running_ = false, visible_ = false;
  bool first_printed_ = false;  ///< the caller has printed its first line
  int launcher_columns_ = 0;
  Clock::time_point begin_, drawn_, printed_;
  std::condition_variable_any ends_;
  std::thread life_;
};

}  // namespace octet::report
