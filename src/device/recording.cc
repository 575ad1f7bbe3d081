#include "octet/device/recording.h"

#include <cstring>

#include "octet/base/environment.h"

namespace octet {

#ifdef OCTET_HAVE_CUDA

namespace cuda {
std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue);
}  // namespace cuda

bool can_record(const Stream& stream) {
  const char* wish = environment_variable("OCTETRUN_RECORDING");
  const bool off = wish != nullptr && std::strcmp(wish, "off") == 0;
  return !off && stream.device().kind() == DeviceKind::cuda && stream.profile() == nullptr;
}

std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue) {
  return can_record(stream) ? cuda::record(stream, enqueue) : nullptr;
}

#else

bool can_record(const Stream&) {
  return false;
}

std::unique_ptr<Recording> record(Stream&, const std::function<void()>&) {
  return nullptr;
}

#endif

}  // namespace octet
