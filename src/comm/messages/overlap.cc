#include <string_view>

#include "octet/base/environment.h"
#include "octet/comm/collectives.h"
#include "octet/device/cpu.h"

namespace octet::comm {

bool overlap_hides(const Device& device, const Place& place) {
  const char* told = environment_variable("OCTETRUN_OVERLAP");
  if (told != nullptr && std::string_view(told) == "always") return true;
  if (device.kind() != DeviceKind::cpu || place.nodes > 1) return true;
  return cpu::op_threads() > 1 || cpu::allowed_cores() > place.local_size;
}

}  // namespace octet::comm
