#pragma once

namespace octet::ops::cuda {

/// Whether kernels that can are launched before the one in front of them has ended (early_launch.cuh): on
/// Hopper and later ones, by code that was compiled for them.
bool launches_early();

}  // namespace octet::ops::cuda
