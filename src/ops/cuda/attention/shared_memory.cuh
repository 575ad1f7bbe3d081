// Resources of a GPU for blocks: shared memory (227 KiB on Hopper, 163 on the A100, 99 on the smallest GPUs)
// and multiprocessors.
#pragma once

#include <cuda_runtime.h>

#include "octet/device/cuda.h"

namespace octet::ops::cuda {

/// Returns a driver attribute of the GPU of the process.
template <cudaDeviceAttr ATTRIBUTE>
int attribute_of_gpu() {
  static const int value = [] {
    int ordinal = 0, found = 0;
    octet::cuda::check(cudaGetDevice(&ordinal), "asking for the current GPU");
    octet::cuda::check(cudaDeviceGetAttribute(&found, ATTRIBUTE, ordinal), "asking for a GPU's attributes");
    return found;
  }();
  return value;
}

/// Returns the maximum bytes of shared memory per block.
inline int most_shared_bytes() {
  return attribute_of_gpu<cudaDevAttrMaxSharedMemoryPerBlockOptin>();
}
inline int multiprocessors() {
  return attribute_of_gpu<cudaDevAttrMultiProcessorCount>();
}

}  // namespace octet::ops::cuda
