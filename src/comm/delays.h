// Delays at random, for tests of what must not depend on who comes first: with OCTETRUN_DELAYS=MILLISECONDS,
// one collective of 32 is enqueued up to that much later, and one of 32 begins so much later on its stream.
// Every rank draws its own.
#pragma once

#include <chrono>
#include <cstdint>

#include "octet/device/device.h"
#include "peer_access.h"

namespace octet::comm {

class Delays {
 public:
  /// Reads the variable; without it nothing is ever late.
  explicit Delays(int rank);
  /// Before a collective is enqueued.
  void before(Stream& stream, PeerAccess& access);

 private:
  std::chrono::microseconds draw();
  std::uint64_t rank_;
  std::uint64_t drawn_ = 0;
  std::chrono::microseconds most_{0};
};

}  // namespace octet::comm
