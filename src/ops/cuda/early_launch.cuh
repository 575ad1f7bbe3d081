// Kernels that begin before the previous kernel has ended. A chain of short kernels spends much time between
// kernels. Blocks of a kernel that is launched early are already resident. Their loads of constant data are
// in flight when their input becomes ready.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/early_launch.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

/// Allows the next kernel of the stream to begin, if it is launched early, once all blocks have called this
/// function. Safe anywhere: the next kernel still waits for the end of this kernel.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until all earlier kernels have ended and their writes are visible. Each thread of a kernel that is
/// launched early must call it before any write or return. Only prefetch() and reads of data that no kernel
/// of the same pass writes, such as weights, may come before.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Brings the cache line of this address to the L2 cache. Later writes by others remain visible.
__device__ inline void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Launches a kernel that calls wait_for_previous(), early or not.
template <typename... Parameters, typename... Arguments>
void launch_early_if(bool early_wanted, void (*kernel)(Parameters...), dim3 blocks, int threads,
                     std::size_t shared_bytes, cudaStream_t stream, const char* op,
                     const Arguments&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = early_wanted && launches_early() ? 1 : 0;
  octet::cuda::check(cudaLaunchKernelEx(&config, kernel, arguments...), op);
}

/// Launches a kernel that calls wait_for_previous() early.
template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared_bytes,
                  cudaStream_t stream, const char* op, const Arguments&... arguments) {
  launch_early_if(true, kernel, blocks, threads, shared_bytes, stream, op, arguments...);
}

/// True if a kernel has so few rows, as in decoding, that the pause before it matters.
inline bool few_rows(std::int64_t rows) {
  return rows <= 256;
}

}  // namespace octet::ops::cuda
