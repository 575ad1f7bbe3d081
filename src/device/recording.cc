#include "octet/device/recording.h"

#include <cstring>

#include "octet/base/environment.h"

namespace octet {

namespace cuda {
std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue);
}  // namespace cuda

bool can_record(const Stream& stream) {
  if (stream.device().kind() != DeviceKind::cuda || stream.profile() != nullptr) return false;
  const char* wish = environment_variable("OCTETRUN_RECORDING");
  return wish == nullptr || std::strcmp(wish, "off") != 0;
}

std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue) {
  return can_record(stream) ? cuda::record(stream, enqueue) : nullptr;
}

}  // namespace octet
