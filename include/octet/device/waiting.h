// How long a stream stood still for others: what communication did not hide.
#pragma once

#include "octet/device/device.h"

namespace octet {

/// From now on the stream takes the time of its waits for events of other streams. Streams of the CPU always
/// do; those of a GPU put a timed event before and behind each wait, which takes the GPU a microsecond.
void measure_waits(Stream& stream);

/// Seconds that work of `stream` has waited for events of other streams since it was made, or since
/// measure_waits() on a GPU. On a GPU: waits that were over when this was called, but for those for
/// background streams, which compute; 0 where nothing measures. Called by the thread that enqueues on the
/// stream.
double seconds_waited(Stream& stream);

}  // namespace octet
