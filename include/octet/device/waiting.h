// Waits: of the host for a point in a stream, and how long a stream stood still for others, which is what
// communication did not hide.
#pragma once

#include "octet/device/device.h"

namespace octet {

/// Blocks the host until the latest record of an event was reached, whatever was enqueued behind it; at once
/// where there was none. Rethrows what work in front of it threw. Not for streams of mode `served`.
void wait_for(Device& device, const Event& event);

/// From now on the stream takes the time of its waits for events of other streams. Streams of the CPU always
/// do; those of a GPU put a timed event before and behind each wait, which takes the GPU a microsecond.
void measure_waits(Stream& stream);

/// Seconds that work of `stream` has waited for events of other streams since it was made, or since
/// measure_waits() on a GPU. On a GPU: waits that were over when this was called, but for those for
/// background streams, which compute; 0 where nothing measures. Called by the thread that enqueues on the
/// stream.
double seconds_waited(Stream& stream);

}  // namespace octet
