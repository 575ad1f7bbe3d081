// The bar of tqdm on standard error. On a terminal it is redrawn in place, each second at least. In a file it
// is a line, printed when nothing else was printed for 30 seconds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <string>
#include <thread>

namespace octet::report {

/// " 12%|███        | 10/84 [01:20<09:52,  8.01s/it]" with `cells` cells of bar. Rates are always seconds a
/// step, because tools compare them. `left` is in seconds. A rate of 0 is unknown.
std::string bar_text(std::int64_t done, std::int64_t total, double elapsed, double seconds_per_step,
                     double left, int cells);

/// "01:20" below an hour, "1:01:20" from there.
std::string bar_time(double seconds);

/// Seconds between two drawings: of a bar at most, of a bar without a new step, and of lines in a file.
struct BarPace {
  double redraw = 0.1, life = 1, line = 30;
  /// The lines that the whole run has to print. Up to 20 lines are all printed, without a pace.
  std::int64_t lines = 0;
};

/// At most one bar lives at a time: octet::log steps around it.
class ProgressBar {
 public:
  /// `done` of `total` steps are behind us at the start.
  ProgressBar(std::int64_t done, std::int64_t total, BarPace pace = {});
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void start();
  /// `left` seconds are expected to remain.
  void advance(std::int64_t done, double seconds_per_step, double left);
  void finish();
  /// Whether a line of progress is due on the screen: always on a terminal and in a short run. Otherwise a
  /// file gets the first line, the line of the last step, and a line 30 seconds after the previous one. The
  /// caller then prints one.
  bool line_is_due();

 private:
  using Clock = std::chrono::steady_clock;
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
  /// Standard error is a terminal, or launch/mpirun draws on one; and how wide the latter is.
  bool terminal_ = false, running_ = false, visible_ = false;
  bool first_printed_ = false;  ///< by the caller
  int launcher_columns_ = 0;
  Clock::time_point begin_, drawn_, printed_;
  std::condition_variable_any ends_;
  std::thread life_;
};

}  // namespace octet::report
