#include "octet/device/waiting.h"

namespace octet {

void measure_waits(Stream& stream) {
  stream.measure_waits();
}

double seconds_waited(Stream& stream) {
  return stream.seconds_waited();
}

}  // namespace octet
