#include "cuda/peer_kernels.h"

#include <algorithm>

namespace octet::comm {
namespace {

__global__ void fault_kernel() {
  __trap();
}

}  // namespace

void enqueue_fault(cudaStream_t stream) {
  fault_kernel<<<1, 1, 0, stream>>>();
}

// Sends small messages by one kernel: a few blocks copy the pieces, including pieces in memory of other GPUs.
// The last block to finish writes the counters. Nothing here waits for another rank. The counter for the host
// is written at the start, so its latency overlaps the copies.

namespace {

constexpr int kThreads = 512;
constexpr std::size_t kBytesOfBlock = std::size_t{16} << 10;
constexpr int kMostBlocks = 32;

__device__ bool on_vectors(const Piece& piece) {
  return ((reinterpret_cast<std::uintptr_t>(piece.from) | reinterpret_cast<std::uintptr_t>(piece.to) |
           piece.bytes) &
          (sizeof(uint4) - 1)) == 0;
}

template <typename Word>
__device__ void copy(const Piece& piece, std::size_t first, std::size_t stride) {
  constexpr int kAtOnce = 4;  // words per thread in flight
  const auto* __restrict__ from = static_cast<const Word*>(piece.from);
  auto* __restrict__ to = static_cast<Word*>(piece.to);
  const std::size_t count = piece.bytes / sizeof(Word);
  std::size_t i = first;
  for (; i + (kAtOnce - 1) * stride < count; i += kAtOnce * stride) {
    Word words[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) words[k] = from[i + k * stride];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) to[i + k * stride] = words[k];
  }
  for (; i < count; i += stride) to[i] = from[i];
}

__device__ void write(const CounterStep& step) {
  *static_cast<volatile std::uint32_t*>(step.counter) = step.value;
}

__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ MoveArgs args) {
  // Not by thread 0 of a block, because its fence would then wait until the write has reached the host.
  if (args.first.counter != nullptr && blockIdx.x == gridDim.x - 1 && threadIdx.x == blockDim.x - 1) {
    write(args.first);
  }
  const std::size_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
  for (int i = 0; i < args.piece_count; ++i) {
    if (on_vectors(args.pieces[i])) {
      copy<uint4>(args.pieces[i], first, stride);
    } else {
      copy<unsigned char>(args.pieces[i], first, stride);
    }
  }
  if (args.then_count == 0) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();  // the block's writes are visible before its ticket
  if (gridDim.x > 1) {
    if (atomicAdd(args.ticket, 1) != gridDim.x - 1) return;
    *args.ticket = 0;        // for the next launch, which starts after this launch ends
    __threadfence_system();  // the writes of all blocks are visible before the counters
  }
  for (int i = 0; i < args.then_count; ++i) write(args.then[i]);
}

}  // namespace

cudaError_t load_move() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, move_kernel);
}

void enqueue_move(cudaStream_t stream, const MoveArgs& args) {
  std::size_t bytes = 0;
  for (int i = 0; i < args.piece_count; ++i) bytes = std::max(bytes, args.pieces[i].bytes);
  const auto blocks = static_cast<int>((bytes + kBytesOfBlock - 1) / kBytesOfBlock);
  // A block with few threads starts and ends sooner.
  const int threads = bytes <= 2048 ? 128 : kThreads;
  move_kernel<<<std::clamp(blocks, 1, kMostBlocks), threads, 0, stream>>>(args);
}

}  // namespace octet::comm
