#include "octet/device/waiting.h"

#include "cpu/stream.h"

namespace octet {

double seconds_waited(Stream& stream) {
  auto* of_cpu = dynamic_cast<cpu::CpuStream*>(&stream);
  return of_cpu != nullptr ? of_cpu->seconds_waited() : 0.0;
}

}  // namespace octet
