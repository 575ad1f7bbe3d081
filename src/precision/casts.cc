#include "octet/precision/casts.h"

#include <cstring>

namespace octet::precision {

CastStatistics::CastStatistics(Arena& arena, const std::string& name, std::int64_t count)
    : device_(arena.device()), count_(count) {
  if (count == 0) return;
  seen_ = static_cast<ops::Fp8Seen*>(arena.reserve(name, bytes()));
  host_ = static_cast<ops::Fp8Seen*>(device_.allocate_host(bytes()));
  // Host memory of a dry device has addresses only.
  if (device_.kind() != DeviceKind::dry) std::memset(host_, 0, bytes());
}

CastStatistics::~CastStatistics() {
  if (host_ != nullptr) device_.release_host(host_, bytes());
}

void CastStatistics::watch(Stream& stream) {
  if (count_ == 0) return;
  watching_ = true;
  device_.zero(stream, seen_, bytes());
}

void CastStatistics::collect(Stream& stream) {
  if (count_ > 0) device_.copy_to_host(stream, host_, seen_, bytes());
}

}  // namespace octet::precision
