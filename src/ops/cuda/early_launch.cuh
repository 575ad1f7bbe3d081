// Kernels that begin while the one in front of them ends. A chain of short kernels spends much of its time
// between them: a kernel that is launched early has its blocks in place, and what it needs of constant things
// on the way, when the results that it reads are there.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/early_launch.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

/// Lets the next kernel of the stream begin, if it is launched early, as soon as all blocks have said so.
/// Right anywhere: that kernel still waits for the end of this one.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until all kernels in front of this one have ended and what they wrote can be read. The first thing
/// that every thread of a kernel does which is launched early, but for what prefetch() asks for and reading
/// what no kernel of the same pass writes, such as weights: no writes, nor a return, come before.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Brings the line with this address to the GPU's cache. What others write meanwhile is seen all the same.
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

/// Whether a kernel works on so few rows, as in decoding, that the pause before it counts.
inline bool few_rows(std::int64_t rows) {
  return rows <= 256;
}

}  // namespace octet::ops::cuda
