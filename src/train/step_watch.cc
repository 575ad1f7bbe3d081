#include "step_watch.h"

#include <algorithm>
#include <utility>

#include "octet/device/waiting.h"

namespace octet::train {

StepWatch::StepWatch(comm::Communicator& communicator, Stream& compute)
    : communicator_(communicator),
      compute_(compute),
      busy_(communicator.seconds_busy()),
      waited_(seconds_waited(compute)) {}

MessageTime StepWatch::take() {
  const double busy = communicator_.seconds_busy(), waited = seconds_waited(compute_);
  MessageTime time{.under_way = busy - std::exchange(busy_, busy)};
  time.exposed = std::min(waited - std::exchange(waited_, waited), time.under_way);
  return time;
}

}  // namespace octet::train
