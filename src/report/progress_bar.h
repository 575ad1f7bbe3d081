// The bar of tqdm on standard error: redrawn in place on a terminal, a line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace octet::report {

/// " 12%|███        | 10/84 [01:20<09:52,  8.01s/it]" with `cells` cells of bar. Rates are always seconds a
/// step, because tools compare them. A rate of 0 is unknown.
std::string bar_text(std::int64_t done, std::int64_t total, double elapsed, double seconds_per_step,
                     int cells);

/// "01:20" below an hour, "1:01:20" from there.
std::string bar_time(double seconds);

/// At most one bar lives at a time: octet::log steps around it.
class ProgressBar {
 public:
  /// `done` of `total` steps are behind us at the start.
  ProgressBar(std::int64_t done, std::int64_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void start();
  void advance(std::int64_t done, double seconds_per_step);
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  static void before_line();
  static void after_line();
  void draw();
  void clear();
  void print_line();

  std::int64_t done_, total_;
  double seconds_per_step_ = 0;
  bool terminal_ = false, running_ = false, visible_ = false;
  Clock::time_point begin_, drawn_, printed_;
  std::int64_t printed_share_ = 0;
};

}  // namespace octet::report
