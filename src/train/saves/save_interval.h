// Chooses the steps between two checkpoints from the mean time between failures, if the user did not set
// them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "octet/comm/channel.h"

namespace octet::train {

/// Returns the seconds of work between two checkpoints that minimise the expected time of a run. A save costs
/// `save_seconds`. The run fails once in `mtbf_seconds` on average, then returns to its newest checkpoint.
/// Uses Young's sqrt(2 x cost x MTBF) (J. W. Young, CACM 17 (1974) 530-531) with the higher orders of J. T.
/// Daly ("A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006)
/// 303-312, eq. 37). Returns the MTBF if a save costs twice the MTBF or more. Both arguments are positive.
double best_interval(double save_seconds, double mtbf_seconds);

/// Returns the fraction of the time that saves and lost steps take with that interval: 1 - T / (M (e^((T + C)
/// / M) - 1)) (Daly, eq. 20). Assumes independent failures and restarts that take no time.
double expected_waste(double interval_seconds, double save_seconds, double mtbf_seconds);

/// Chooses the steps to save, from the measured costs of saves and steps. All functions are collective unless
/// noted. Answers are equal on all ranks, because they follow from the clock of rank 0.
class SaveInterval {
 public:
  /// The run starts after `step` and ends with `total_steps`. `what` names the saved thing in log lines:
  /// "checkpoints".
  SaveInterval(comm::Channel& channel, std::string what, double mtbf_hours, std::int64_t step,
               std::int64_t total_steps);

  /// Records the seconds of a step. Only the values of rank 0 count.
  void stepped(double seconds);
  /// Whether to save after this step. The first save is early (kFirst steps), to measure its cost.
  bool is_due(std::int64_t step) const { return step >= next_; }
  /// Records a save and the seconds that it delayed training; collective. Rank 0 logs the interval if it
  /// changed notably.
  void saved(std::int64_t step, double seconds);
  /// Records a save that was due but failed.
  void failed(std::int64_t step) { next_ = step + interval_; }

  static constexpr std::int64_t kFirst = 10;

 private:
  comm::Channel& channel_;
  std::string what_;
  double mtbf_seconds_;
  std::int64_t next_, total_steps_;
  std::int64_t interval_ = kFirst;
  std::int64_t told_ = 0;                           ///< the last logged interval
  std::deque<double> step_seconds_, save_seconds_;  ///< the latest, on rank 0
};

}  // namespace octet::train
