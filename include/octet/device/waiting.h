// How long a stream stood still for others: what communication did not hide.
#pragma once

#include "octet/device/device.h"

namespace octet {

/// Seconds that work of `stream` has waited for events of other streams since it was made. Only streams of
/// the CPU measure it; 0 for others.
double seconds_waited(Stream& stream);

}  // namespace octet
