// The CUDA side of streams, for code that enqueues work on them: ops and comm. Needs no CUDA header. Builds
// without CUDA do not contain these functions.
#pragma once

#include "octet/device/device.h"

struct CUstream_st;

namespace octet::cuda {

/// Returns the cudaStream_t of a stream of a CUDA device and makes that device current for the calling
/// thread. Call it before other CUDA calls that work for the stream.
CUstream_st* native(Stream& stream);

/// Words in the GPU's memory that belong to a stream: the blocks of a kernel exchange values in them. All
/// bits are set before and after each kernel that uses them. Allocated at the first call, also while the
/// stream's work is recorded.
inline constexpr std::int64_t kExchangeWords = std::int64_t{1} << 20;
unsigned* exchange(Stream& stream);
/// More exchange words for a chain of GEMMs (octet/ops/decode_gemm.h), which stores values in the words
/// between kernels. All blocks of such a kernel are resident on the GPU at once. No other kernel with blocks
/// that wait for each other runs concurrently.
inline constexpr std::int64_t kChainWords = std::int64_t{1} << 17;
unsigned* chain_words(Stream& stream);

/// Properties of a CUDA device's GPU that determine launch shapes of kernels.
struct Properties {
  int ordinal = 0;
  int multiprocessors = 0;
  int compute_capability = 0;  ///< 10 * major + minor
  std::size_t l2_bytes = 0;
};
const Properties& properties(const Device& device);
/// Returns the compute capability, 10 * major + minor, of the compiled code that the calling thread's current
/// GPU runs. It is older than the GPU's if the program was not built for this GPU.
int code_here();

/// Returns a function of the GPU driver that has no form in the CUDA runtime. The runtime looks it up, so
/// that no target links the driver. Throws Error if the driver has no function of that name.
void* find_driver_function(const char* name);
template <typename F>
F driver_function(const char* name) {
  return reinterpret_cast<F>(find_driver_function(name));
}

/// Throws Error if `code` (a cudaError_t) is not 0. `what`: the failed action, for the message.
void check(int code, const char* what);
/// Throws Error if the launch of the kernels of `op` was refused. Call it after each launch. Errors during
/// execution appear when a stream is synchronised.
void check_launch(const char* op);

}  // namespace octet::cuda
