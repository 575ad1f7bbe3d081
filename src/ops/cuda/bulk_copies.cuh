// Copies of tiles by Hopper's copy engine. One thread starts the copy of a tile, and a barrier in shared
// memory counts its bytes.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/mma.cuh"

namespace octet::ops::cuda {

/// A barrier in shared memory with consecutive phases. A phase ends when all threads have arrived and all
/// announced bytes have been copied.
using Barrier = std::uint64_t;

/// Initializes a barrier. Called by one thread before any use, followed by open_barriers() and a barrier of
/// the block.
__device__ inline void make_barrier(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals)
               : "memory");
}
/// Makes the barriers that this thread has initialized visible to the copy engine.
__device__ inline void open_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
/// The next three functions take the shared_address() of a barrier, for loops that keep it in a register.
__device__ inline void arrive(unsigned barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_for_bytes(unsigned barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
__device__ inline void wait_for_phase(unsigned barrier, int phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred ended;\n"
      "again: mbarrier.try_wait.parity.shared.b64 ended, [%0], %1;\n"
      "@!ended bra again;}" ::"r"(barrier),
      "r"(phase)
      : "memory");
#endif
}
__device__ inline void arrive(Barrier& barrier) {
  arrive(shared_address(&barrier));
}
/// Arrives and announces bytes of copies.
__device__ inline void arrive_for_bytes(Barrier& barrier, int bytes) {
  arrive_for_bytes(shared_address(&barrier), bytes);
}
/// Waits for the end of a phase: 0 for the first, then 1, 0, …
__device__ inline void wait_for_phase(Barrier& barrier, int phase) {
  wait_for_phase(shared_address(&barrier), phase);
}

/// Cache hints for the bytes of a copy.
enum class Reread : std::uint64_t { never = 0x12F0000000000000, often = 0x14F0000000000000 };

/// Starts the copy of a tile of a matrix with first element (row, column). Elements outside the matrix become
/// zero. `to` must be aligned to 1024 bytes. The barrier counts the bytes of the full tile.
__device__ inline void copy_tile(void* to, const CUtensorMap& map, int row, int column, Barrier& barrier,
                                 Reread reread) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%3, %4}], "
      "[%2], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "l"(static_cast<std::uint64_t>(reread))
      : "memory");
#else
  __trap();
#endif
}

}  // namespace octet::ops::cuda
