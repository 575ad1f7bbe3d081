// Counters of the bytes and times of collectives.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <vector>

#include "messages/transport.h"
#include "octet/base/timing.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

/// Thread-safe.
class Meter {
 public:
  /// Adds to the counters of a kind.
  void count(Kind kind, const Traffic& traffic);
  /// Changes the number of unfinished collectives of streams.
  void under_way(int change);
  /// Returns the counts since the last call.
  std::vector<Traffic> take();
  double seconds_busy() const;

 private:
  mutable std::mutex mutex_;
  int under_way_ = 0;
  Clock::time_point busy_since_;
  double seconds_busy_ = 0;
  std::map<Kind, Traffic> traffic_;
};

}  // namespace octet::comm
