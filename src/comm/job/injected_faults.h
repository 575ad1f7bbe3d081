// Faults and delays of collectives, for tests of how jobs end and of independence from the order of arrival.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "gpu/peer_access.h"
#include "octet/comm/channel.h"
#include "octet/device/device.h"

namespace octet::comm {

// Failures inside a step, for tests of how jobs end: with OCTETRUN_BREAK_STEP=KIND:N the last rank of a group
// fails at its N-th collective. KIND is `gpu` (a kernel that faults, so that every later call for the GPU
// fails), `memory` (a reservation that no device has room for) or `nccl` (an exchange of NCCL that reports an
// error).

class BrokenStep {
 public:
  /// Reads the variable. If it is not set, nothing fails.
  explicit BrokenStep(const Place& place);
  /// Called before a collective is enqueued. Throws the error of the failure.
  void before(Device& device, Stream& stream, PeerAccess& access);

  /// Whether the next exchange of NCCL in this process is to report an error; asked once for each.
  static bool nccl_fails();

 private:
  enum class Kind { none, gpu, memory, nccl } kind_ = Kind::none;
  std::int64_t left_ = 0;  ///< collectives before the failing one
};

// Random delays, for tests of independence from the order of arrival. With OCTETRUN_DELAYS=MILLISECONDS, one
// collective of 32 is enqueued up to this much later, and one of 32 starts up to this much later on its
// stream. Each rank draws its own delays.

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
