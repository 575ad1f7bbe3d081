// The NCCL carrier: an exchange for each queue, or the reason why it is unavailable. The only place where
// builds with and without CUDA and NCCL differ.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gpu/exchange.h"
#include "octet/device/device.h"

namespace octet::comm {

/// Loads NCCL and returns its version. Throws Error if it is missing, too old or not built in.
int load_nccl();
/// Returns the UUID of the GPU, equal for all processes that use it.
std::string gpu_uuid(Device& device);
/// Returns the bytes that identify one exchange. Called on one rank.
std::string make_nccl_id();
/// Called by all ranks together, with the bytes of rank 0, after load_nccl(). Returns when all ranks have
/// arrived and are connected.
std::unique_ptr<Exchange> make_nccl_exchange(Device& device, const std::string& id, int rank, int size);

}  // namespace octet::comm
