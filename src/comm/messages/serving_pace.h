// How long the thread that serves messages polls, and how long it sleeps between two polls.
#pragma once

#include <chrono>

#include "octet/base/timing.h"

namespace octet::comm {

/// Records when messages move. Not thread-safe: only the thread that serves in a turn uses it.
class ServingPace {
 public:
  using Microseconds = std::chrono::microseconds;

  /// `several_nodes`: messages may go to other nodes.
  explicit ServingPace(bool several_nodes = false) : several_nodes_(several_nodes) {}

  /// Begins to serve. Call it before the first turn.
  void begin(Clock::time_point now) { last_progress_ = now; }
  /// Begins a poll of all work.
  void begin_poll() { in_flight_ = false; }
  /// Records that a collective is under way in this poll.
  void found_in_flight() { in_flight_ = true; }
  /// Records that something has moved in this poll.
  void moved(Clock::time_point now);

  /// Whether a collective is under way.
  bool in_flight() const { return in_flight_; }
  Clock::time_point last_progress() const { return last_progress_; }
  /// Returns the time since the latest progress.
  Microseconds quiet(Clock::time_point now) const;

  /// Returns how long to poll without a pause while nothing moves. `caller`: the serving thread waits itself,
  /// and has no other work.
  Clock::duration eagerness(bool caller) const;
  /// Whether messages take so long that polling at once only takes the core from compute.
  bool is_slow_link() const;
  /// Returns the time to sleep if compute uses all cores and no thread waits.
  Microseconds nap_beside_compute(Microseconds quiet) const;
  /// Returns the time to sleep after `quiet`. `idle`: no collective is queued or under way. `beside_callers`:
  /// waiting threads serve themselves.
  Microseconds nap(Microseconds quiet, bool idle, bool beside_callers) const;

 private:
  bool several_nodes_;
  bool in_flight_ = false;
  Clock::time_point last_progress_;
  Clock::duration pace_{};  ///< recent average time between two completed messages
};

}  // namespace octet::comm
