// Work that a stream does again as it was: a GPU then gets it in one call, and the host need not enqueue it
// piece by piece.
#pragma once

#include <functional>
#include <memory>

#include "octet/device/device.h"

namespace octet {

/// Work that was enqueued once: kernels and copies with their arguments and addresses, which stay as they
/// were. What lies there may change from one replay to the next.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Enqueues the work on the stream that it was recorded on.
  virtual void replay() = 0;
};

/// Whether work of a stream can be recorded: on a GPU, unless its time is taken (profile.h).
bool can_record(const Stream& stream);

/// Calls `enqueue`, which puts work on `stream` alone and waits for nothing, and keeps that work in place of
/// doing it. The same work has been done before, so that whatever is prepared once is there. Null where
/// nothing is kept: where the stream cannot be recorded (then `enqueue` is not called), and where the driver
/// or the work does not bear it. Nothing was done then either.
std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue);

}  // namespace octet
