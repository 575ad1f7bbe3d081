// The steps between two checkpoints, where nobody gave them but the mean time between failures is known.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "octet/comm/channel.h"

namespace octet::train {

/// Seconds of work between two checkpoints that cost `save_seconds` each, for the least expected time of a
/// run that fails once in `mtbf_seconds` on average and then goes back to its newest checkpoint: Young's
/// sqrt(2 x cost x MTBF) (J. W. Young, CACM 17 (1974) 530-531) with the higher orders of J. T. Daly ("A
/// higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006) 303-312, eq.
/// 37). A save that costs twice the MTBF or more: the MTBF. Both arguments positive.
double best_interval(double save_seconds, double mtbf_seconds);

/// The share of the time that saves and lost steps take with that interval, as long as a restart takes no
/// time: 1 - T / (M (e^((T + C) / M) - 1)) (Daly, eq. 20), for failures that come independently of each
/// other.
double expected_waste(double interval_seconds, double save_seconds, double mtbf_seconds);

/// Says which steps are saved, from what saves and steps were measured to cost. All ranks call it alike and
/// get the same answers: rank 0's clock decides.
class SaveInterval {
 public:
  /// The run begins behind `step`; it ends with step `total_steps`. `what` is saved, in the words for people:
  /// "checkpoints".
  SaveInterval(comm::Channel& channel, std::string what, double mtbf_hours, std::int64_t step,
               std::int64_t total_steps);

  /// A step took so long; of rank 0 alone.
  void stepped(double seconds);
  /// Whether to save behind this step. The first time is early (kFirst steps), so that the cost is known.
  bool is_due(std::int64_t step) const { return step >= next_; }
  /// The step was saved, which held training up for so many seconds; collective. Says on rank 0 what follows
  /// where that is something else than before.
  void saved(std::int64_t step, double seconds);
  /// It was to be, and was not.
  void failed(std::int64_t step) { next_ = step + interval_; }

  static constexpr std::int64_t kFirst = 10;

 private:
  comm::Channel& channel_;
  std::string what_;
  double mtbf_seconds_;
  std::int64_t next_, total_steps_;
  std::int64_t interval_ = kFirst;
  std::int64_t told_ = 0;                           ///< the interval that was said last
  std::deque<double> step_seconds_, save_seconds_;  ///< the latest, of rank 0
};

}  // namespace octet::train
