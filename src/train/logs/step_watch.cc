#include "logs/step_watch.h"

#include <algorithm>
#include <utility>

#include "octet/device/waiting.h"

namespace octet::train {

StepWatch::StepWatch(comm::Collectives& collectives, Stream& compute)
    : collectives_(collectives),
      compute_(compute),
      busy_(collectives.seconds_busy()),
      waited_(seconds_waited(compute)) {}

MessageTime StepWatch::take() {
  const double busy = collectives_.seconds_busy(), waited = seconds_waited(compute_);
  MessageTime time{.under_way = busy - std::exchange(busy_, busy)};
  time.exposed = std::min(waited - std::exchange(waited_, waited), time.under_way);
  return time;
}

}  // namespace octet::train
