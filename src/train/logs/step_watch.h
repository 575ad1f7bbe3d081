// Measures how long messages of a step are in flight, and how long the compute stream waits for them.
#pragma once

#include "octet/comm/collectives.h"
#include "octet/device/device.h"

namespace octet::train {

/// Seconds on this rank.
struct MessageTime {
  double under_way = 0;  ///< at least one collective was in flight; concurrent ones count once
  double exposed = 0;    ///< thereof, `compute` was idle; at most `under_way`
};

/// Measures message times between calls of take(). Use it on the thread that enqueues on `compute`.
class StepWatch {
 public:
  StepWatch(comm::Collectives& collectives, Stream& compute);

  /// Returns the times since construction or the last call. The compute stream also waits without messages:
  /// for threads to wake up, or for other streams. Such waiting is not communication, so `exposed` excludes
  /// waiting beyond the message time.
  MessageTime take();

 private:
  comm::Collectives& collectives_;
  Stream& compute_;
  double busy_, waited_;
};

}  // namespace octet::train
