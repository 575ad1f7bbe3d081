// Times of collectives on streams, from timed events around each of them, read after they are reached.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "meter.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

/// Used by the enqueuing thread.
class Stopwatch {
 public:
  explicit Stopwatch(Device& device) : device_(device) {}

  /// Mark the begin or end of a collective at the current point of `stream`. One collective per queue at a
  /// time.
  void begin(Stream& stream, Queue queue, Kind kind);
  void end(Stream& stream, Queue queue);

  /// Collects collectives that have ended. Adds the time of each kind to `meter`. Returns the seconds during
  /// which at least one was under way.
  double collect(Meter& meter);
  /// Returns the number of collectives that have not been collected yet.
  std::size_t open() const { return laps_.size(); }

 private:
  struct Lap {
    Kind kind{};
    Queue queue{};
    std::unique_ptr<Event> begin, end;
  };
  std::unique_ptr<Event> event();

  Device& device_;
  std::deque<Lap> laps_;                       ///< in the order in which they were enqueued
  std::vector<std::unique_ptr<Event>> spare_;  ///< events to be used again
};

}  // namespace octet::comm
