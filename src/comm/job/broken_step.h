// Failures inside a step, for tests of how jobs end: with OCTETRUN_BREAK_STEP=KIND:N the last rank of a group
// fails at its N-th collective. KIND is `gpu` (a kernel that faults, so that every later call for the GPU
// fails), `memory` (a reservation that no device has room for) or `nccl` (an exchange of NCCL that reports an
// error).
#pragma once

#include <cstdint>
#include <string_view>

#include "gpu/peer_access.h"
#include "octet/comm/channel.h"
#include "octet/device/device.h"

namespace octet::comm {

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

}  // namespace octet::comm
