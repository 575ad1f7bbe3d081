// Random delays, for tests of independence from the order of arrival. With OCTETRUN_DELAYS=MILLISECONDS, one
// collective of 32 is enqueued up to this much later, and one of 32 starts up to this much later on its
// stream. Each rank draws its own delays.
#pragma once

#include <chrono>
#include <cstdint>

#include "gpu/peer_access.h"
#include "octet/device/device.h"

namespace octet::comm {

class Delays {
 public:
  /// Reads the variable. Without it there are no delays.
  explicit Delays(int rank);
  /// Called before a collective is enqueued.
  void before(Stream& stream, PeerAccess& access);

 private:
  std::chrono::microseconds draw();
  std::uint64_t rank_;
  std::uint64_t drawn_ = 0;
  std::chrono::microseconds most_{0};
};

}  // namespace octet::comm
