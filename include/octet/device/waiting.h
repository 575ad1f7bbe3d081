// Waits of the host for a point in a stream, and the time that a stream waited for other streams: the exposed
// communication time.
#pragma once

#include "octet/device/device.h"

namespace octet {

/// Blocks the host until the latest record of an event is reached, without waiting for later work. Returns at
/// once if there is no record. Rethrows exceptions of work before the record. Not for streams of mode
/// `served`.
void wait_for(Device& device, const Event& event);

/// Makes the stream measure its waits for events of other streams. CPU streams always measure. GPU streams
/// put a timed event before and after each wait, which costs the GPU a microsecond.
void measure_waits(Stream& stream);

/// Returns the seconds that work of `stream` has waited for events of other streams. CPU streams count from
/// their creation, GPU streams from measure_waits(). A GPU counts waits that have ended at the time of the
/// call, except waits for background streams, which compute. 0 if nothing is measured. Called by the thread
/// that enqueues on the stream.
double seconds_waited(Stream& stream);

}  // namespace octet
