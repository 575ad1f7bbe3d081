#include "octet/precision/casts.h"

namespace octet::precision {

CastStatistics::CastStatistics(Arena& arena, const std::string& name, std::int64_t count)
    : device_(arena.device()), count_(count) {
  if (count == 0) return;
  seen_ = static_cast<ops::Fp8Seen*>(arena.reserve(name, bytes()));
  host_ = static_cast<ops::Fp8Seen*>(arena.reserve(name, bytes(), MemoryKind::pinned));
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
