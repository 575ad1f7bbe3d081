#pragma once

#include "octet/device/device.h"

namespace octet::ops {

/// Whether kernels on this device give the same bits in every run without being told to: the CPU's do. A
/// GPU's fastest do not: attention's backward pass adds in the order in which blocks finish, and the
/// algorithm of a product is chosen by timing.
bool reproducible_by_default(const Device& device);

/// For all kernels enqueued from now on by this process. true: the same bits in every run and on every rank,
/// at the price of slower attention and products on a GPU (set_deterministic_attention, set_gemm_timing).
void set_reproducible(bool on);

}  // namespace octet::ops
