// Work that a stream repeats unchanged. A GPU receives it in one call, so the host does not enqueue each
// piece again.
#pragma once

#include <functional>
#include <memory>

#include "octet/device/device.h"

namespace octet {

/// Recorded work: kernels and copies with their arguments and addresses, which stay fixed. The memory
/// contents at these addresses may change between replays.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Enqueues the work on the stream that it was recorded on.
  virtual void replay() = 0;
};

/// Returns whether work of a stream can be recorded: true on a GPU, unless the stream has a profile
/// (profile.h).
bool can_record(const Stream& stream);

/// Calls `enqueue` and records its work instead of running it. `enqueue` must put work on `stream` only and
/// must not wait. The same work must have run before, so that one-time preparations are done. Returns null if
/// nothing is recorded: the stream cannot record (then `enqueue` is not called), or the driver or the work
/// does not support it. The work has not run in this case either.
std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue);

}  // namespace octet
