// The CUDA side of streams, for those who put work on them: ops and comm. It needs no CUDA header; builds
// without CUDA have none of it.
#pragma once

#include "octet/device/device.h"

struct CUstream_st;

namespace octet::cuda {

/// The cudaStream_t of a stream of a CUDA device, with that device made the calling thread's current one:
/// call it before any other CUDA call that works for the stream.
CUstream_st* native(Stream& stream);

/// Words of the GPU's memory that belong to a stream, in which the blocks of a kernel hand each other values:
/// all their bits are set before and after each kernel that uses them. Taken when they are first asked for,
/// also while the stream's work is recorded.
inline constexpr std::int64_t kExchangeWords = std::int64_t{1} << 20;
unsigned* exchange(Stream& stream);
/// More of the same kind, for a chain of GEMMs (octet/ops/lone_chain.h), which keeps values there from one
/// kernel to the next. Such a kernel's blocks stand on the GPU all at once; no other one whose blocks wait
/// for each other runs beside it.
inline constexpr std::int64_t kChainWords = std::int64_t{1} << 17;
unsigned* chain_words(Stream& stream);

/// Properties of the GPU behind a CUDA device that kernels are shaped by.
struct Properties {
  int ordinal = 0;
  int multiprocessors = 0;
  int compute_capability = 0;  ///< 10 * major + minor
  std::size_t l2_bytes = 0;
};
const Properties& properties(const Device& device);
/// The compute capability, 10 * major + minor, for which the code was compiled that kernels run on the
/// calling thread's current GPU: an older one than the GPU's own where the program was not built for that.
int code_here();

/// A function of the GPU's driver that the runtime has no form of, found through the runtime, so that nothing
/// links the driver. Throws Error where the driver has none of that name.
void* find_driver_function(const char* name);
template <typename F>
F driver_function(const char* name) {
  return reinterpret_cast<F>(find_driver_function(name));
}

/// Throws Error when `code` (a cudaError_t) is not 0, naming `what` was asked for.
void check(int code, const char* what);
/// Throws Error when the launch of the kernels of `op` was refused. Call it after each launch. Whether they
/// ran through shows when a stream is synchronised.
void check_launch(const char* op);

}  // namespace octet::cuda
