#pragma once

namespace octet::ops::cuda {

/// True if supported kernels are launched before the previous kernel has ended (early_launch.cuh). This needs
/// Hopper or later, and code that was compiled for it.
bool launches_early();

}  // namespace octet::ops::cuda
