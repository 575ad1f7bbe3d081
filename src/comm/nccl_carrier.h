// The carrier nccl for those who choose: an exchange for each queue, or why there is none. The one place
// where builds with and without CUDA and NCCL differ.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "exchange.h"
#include "octet/device/device.h"

namespace octet::comm {

/// Loads NCCL. Its version, or throws Error: it is missing, too old, or not built in.
int load_nccl();
/// The UUID of the GPU, the same for whoever computes on it.
std::string gpu_uuid(Device& device);
/// The bytes that one exchange is made of, on one rank.
std::string make_nccl_id();
/// All ranks at once, with the bytes of rank 0; returns when all have come and are connected. After
/// load_nccl().
std::unique_ptr<Exchange> make_nccl_exchange(Device& device, const std::string& id, int rank, int size);

}  // namespace octet::comm
