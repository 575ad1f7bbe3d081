// Partial sums of a GEMM that streams its weight (streamed.cu). If several blocks contribute to a tile, they
// store their sums in the exchange buffer of the stream, word by word. The block with the first runs of the
// tile adds them.
#pragma once

#include <cstdint>

#include "cuda/gemm/streamed_ring.cuh"
#include "cuda/word_exchange.cuh"

namespace octet::ops::cuda::stream_k {

/// Returns the address of the sums of this thread in a block; its quads are kGroupThreads apart.
template <typename C>
__device__ uint4* partials_of(const Streamed& args, int block) {
  return args.exchange + static_cast<std::int64_t>(block) * C::QUADS * kGroupThreads + threadIdx.x;
}

/// Stores the sums of a thread for the block with the first runs of the tile, word by word. A word is valid
/// as soon as it is not kNothing, so no flag is needed.
template <typename C>
__device__ void leave_partials(const Streamed& args, const float (&sums)[C::SUMS]) {
  uint4* const to = partials_of<C>(args, static_cast<int>(blockIdx.x));
#pragma unroll
  for (int i = 0; i < C::QUADS; ++i) {
    leave_quad(to + i * kGroupThreads,
               make_uint4(word_of_sum(sums[4 * i]), word_of_sum(sums[4 * i + 1]),
                          word_of_sum(sums[4 * i + 2]), word_of_sum(sums[4 * i + 3])));
  }
}

/// Adds the sums of the corresponding threads in `count` blocks from `first` on. The sums of several blocks
/// are loaded at once.
template <typename C>
__device__ void add_partials(const Streamed& args, int first, int count, float (&sums)[C::SUMS]) {
  constexpr int AT_ONCE = C::TOKENS <= 32 ? 3 : 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int begin = 0; begin < count; begin += AT_ONCE) {
    uint4 more[AT_ONCE][C::QUADS];
    bool all = false;
    while (!all) {
      // Other blocks still need the memory, so a waiting warp polls only the last quad of each block.
      if (lane < min(AT_ONCE, count - begin)) {
        const uint4* const last = partials_of<C>(args, first + begin + lane) + (C::QUADS - 1) * kGroupThreads;
        while (!there(look_at_quad(last))) {
        }
      }
      __syncwarp();
      all = true;
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        if (begin + k >= count) continue;
        const uint4* const from = partials_of<C>(args, first + begin + k);
#pragma unroll
        for (int i = 0; i < C::QUADS; ++i) {
          more[k][i] = look_at_quad(from + i * kGroupThreads);
          all = all && there(more[k][i]);
        }
      }
      all = __all_sync(0xFFFFFFFFu, all);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      if (begin + k >= count) continue;
      uint4* const from = partials_of<C>(args, first + begin + k);
#pragma unroll
      for (int i = 0; i < C::QUADS; ++i) {
        leave_quad(from + i * kGroupThreads, nothing_quad());
        sums[4 * i] += __uint_as_float(more[k][i].x);
        sums[4 * i + 1] += __uint_as_float(more[k][i].y);
        sums[4 * i + 2] += __uint_as_float(more[k][i].z);
        sums[4 * i + 3] += __uint_as_float(more[k][i].w);
      }
    }
  }
}

/// Returns the number of following blocks with runs of a tile. This block has the runs up to `end`.
__device__ inline int blocks_behind(const Streamed& args, int end, int tile_end) {
  int count = 0;
  for (; end < tile_end; ++count) end = first_run(args, static_cast<int>(blockIdx.x) + count + 2);
  return count;
}

}  // namespace octet::ops::cuda::stream_k
