// Times of this process.
#pragma once

#include <chrono>

namespace octet {

/// The clock of durations and deadlines. It never goes back.
using Clock = std::chrono::steady_clock;

/// Seconds between `start` and now.
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace octet
