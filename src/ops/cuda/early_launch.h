#pragma once

namespace octet::ops::cuda {

/// Whether kernels that can are launched before the one in front of them has ended (early_launch.cuh).
bool launches_early();

}  // namespace octet::ops::cuda
