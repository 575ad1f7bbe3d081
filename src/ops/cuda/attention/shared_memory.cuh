// What a block may have of shared memory: 227 KiB on Hopper, 163 on the A100, 99 on the smallest cards.
#pragma once

#include <cuda_runtime.h>

#include "octet/device/cuda.h"

namespace octet::ops::cuda {

/// Bytes that a block of the process's GPU may ask for.
inline int most_shared_bytes() {
  static const int most = [] {
    int ordinal = 0, bytes = 0;
    octet::cuda::check(cudaGetDevice(&ordinal), "asking for the current GPU");
    octet::cuda::check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal),
                       "asking for a GPU's shared memory");
    return bytes;
  }();
  return most;
}

}  // namespace octet::ops::cuda
