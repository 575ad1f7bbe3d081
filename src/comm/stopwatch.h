// Times of collectives on streams: timed events around each of them, read when they have been reached.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "meter.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

/// Used by the thread that enqueues.
class Stopwatch {
 public:
  explicit Stopwatch(Device& device) : device_(device) {}

  /// A collective begins, or ends, with what is enqueued on `stream` so far. One of each queue at a time.
  void begin(Stream& stream, Queue queue, Kind kind);
  void end(Stream& stream, Queue queue);

  /// Takes what has ended since: the time of each kind goes to `meter`, and the seconds in which at least one
  /// was under way are returned.
  double collect(Meter& meter);
  /// Collectives whose times nobody has taken yet.
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
