// Small messages by one kernel: a few blocks copy the pieces, into the memory of other GPUs too, and the last
// one to end writes the counters. Nothing here waits for another rank.
#include <algorithm>

#include "cuda/move.h"

namespace octet::comm {
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
  const auto* from = static_cast<const Word*>(piece.from);
  auto* to = static_cast<Word*>(piece.to);
  for (std::size_t i = first; i < piece.bytes / sizeof(Word); i += stride) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ MoveArgs args) {
  const std::size_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
  for (int i = 0; i < args.piece_count; ++i) {
    if (on_vectors(args.pieces[i])) {
      copy<uint4>(args.pieces[i], first, stride);
    } else {
      copy<unsigned char>(args.pieces[i], first, stride);
    }
  }
  if (args.then_count == 0) return;
  __threadfence_system();  // what a thread has written is there before its block says that it is through
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    if (atomicAdd(args.ticket, 1) != gridDim.x - 1) return;
    *args.ticket = 0;        // for the next launch, which this one's end precedes
    __threadfence_system();  // and what the other blocks have written is there before the counters say so
  }
  for (int i = 0; i < args.then_count; ++i) {
    *static_cast<volatile std::uint32_t*>(args.then[i].counter) = args.then[i].value;
  }
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
  // A block of few threads begins and ends sooner.
  const int threads = bytes <= 2048 ? 128 : kThreads;
  move_kernel<<<std::clamp(blocks, 1, kMostBlocks), threads, 0, stream>>>(args);
}

}  // namespace octet::comm
