#include "saves/save_interval.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/report/number.h"

namespace octet::train {
namespace {

constexpr std::size_t kSteps = 64, kSaves = 5;  // values that are kept
constexpr double kTold = 0.25;                  // relative change of the interval that is logged
constexpr double kLongest = 1e12;               // steps; far below integer overflow

void remember(std::deque<double>& latest, double value, std::size_t most) {
  latest.push_back(value);
  if (latest.size() > most) latest.pop_front();
}

}  // namespace

double best_interval(double save_seconds, double mtbf_seconds) {
  check(save_seconds > 0 && mtbf_seconds > 0, "a save and the time between failures take time");
  if (save_seconds >= 2 * mtbf_seconds) return mtbf_seconds;
  const double ratio = save_seconds / (2 * mtbf_seconds);
  return std::sqrt(2 * save_seconds * mtbf_seconds) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - save_seconds;
}

double expected_waste(double interval_seconds, double save_seconds, double mtbf_seconds) {
  return 1 - interval_seconds / (mtbf_seconds * std::expm1((interval_seconds + save_seconds) / mtbf_seconds));
}

SaveInterval::SaveInterval(comm::Channel& channel, std::string what, double mtbf_hours, std::int64_t step,
                           std::int64_t total_steps)
    : channel_(channel),
      what_(std::move(what)),
      mtbf_seconds_(3600 * mtbf_hours),
      next_(step + kFirst),
      total_steps_(total_steps) {}

void SaveInterval::stepped(double seconds) {
  if (channel_.rank() == 0) remember(step_seconds_, seconds, kSteps);
}

void SaveInterval::saved(std::int64_t step, double seconds) {
  constexpr double kLeast = 1e-6;  // for a clock with no progress
  std::int64_t interval = 0;
  if (channel_.rank() == 0) {
    remember(save_seconds_, std::max(kLeast, seconds), kSaves);
    // Medians: a slow first step, or a save while the disk is busy, must not decide.
    const double cost = lower_median({save_seconds_.begin(), save_seconds_.end()});
    const double of_step = step_seconds_.empty()
                               ? cost
                               : std::max(kLeast, lower_median({step_seconds_.begin(), step_seconds_.end()}));
    const double work = best_interval(cost, mtbf_seconds_);
    interval = static_cast<std::int64_t>(std::clamp(std::round(work / of_step), 1.0, kLongest));
    const auto change = static_cast<double>(std::abs(interval - told_));
    if (step < total_steps_ && change > kTold * static_cast<double>(told_)) {
      told_ = interval;
      const auto number = [](double value) { return report::python_number(value, 3); };
      const std::string every = interval == 1 ? "every step" : "every " + with_commas(interval) + " steps";
      const double waste = expected_waste(static_cast<double>(interval) * of_step, cost, mtbf_seconds_);
      log::info(what_ + " after " + every + " from here on (mtbf_hours): a save takes " + number(cost) +
                " s, a step " + number(of_step) + " s; saves and failures are expected to cost " +
                number(100 * waste) + " % of the time, not counting restarts");
    }
  }
  interval_ = channel_.all_max(interval);
  next_ = step + interval_;
}

}  // namespace octet::train
