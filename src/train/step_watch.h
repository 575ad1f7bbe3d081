// How long messages of a step were under way, and how long computing waited for them.
#pragma once

#include "octet/comm/collectives.h"
#include "octet/device/device.h"

namespace octet::train {

/// Seconds on this rank.
struct MessageTime {
  double under_way = 0;  ///< a collective was begun and not complete; those side by side count once
  double exposed = 0;    ///< of these: `compute` stood still meanwhile. Never more than `under_way`
};

/// Takes the time of messages from one take() to the next. Used by the thread that enqueues on `compute`.
class StepWatch {
 public:
  StepWatch(comm::Collectives& collectives, Stream& compute);

  /// What went by since the watch was made or last asked. Computing also waits when no message is under way:
  /// for a thread to be woken, for work of the device's other streams. That is not communication's time, so
  /// what it waited beyond it is left out.
  MessageTime take();

 private:
  comm::Collectives& collectives_;
  Stream& compute_;
  double busy_, waited_;
};

}  // namespace octet::train
