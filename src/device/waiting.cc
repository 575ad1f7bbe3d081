#include "octet/device/waiting.h"

#include <sched.h>

#include <exception>

#include "cpu/stream.h"

namespace octet {

void wait_for(Device& device, const Event& event) {
  const auto* of_cpu = dynamic_cast<const cpu::CpuEvent*>(&event);
  if (of_cpu == nullptr) {
    while (!device.complete(event)) sched_yield();
    return;
  }
  const auto latest = of_cpu->latest();
  if (latest == nullptr) return;
  latest->wait();
  if (latest->error() != nullptr) std::rethrow_exception(latest->error());
}

void measure_waits(Stream& stream) {
  stream.measure_waits();
}

double seconds_waited(Stream& stream) {
  return stream.seconds_waited();
}

}  // namespace octet
