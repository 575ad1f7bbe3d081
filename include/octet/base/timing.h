// Durations: the clock of this process, and medians.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace octet {

// Times of this process.

/// The clock of durations and deadlines. It never goes back.
using Clock = std::chrono::steady_clock;

/// Seconds between `start` and now.
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The middle value; of an even number the mean of both in the middle, of none 0.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The middle value; of an even number the lower one in the middle, so that it is one of them. At least one.
inline double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace octet
