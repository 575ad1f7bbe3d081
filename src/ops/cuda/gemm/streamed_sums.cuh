// Sums of a GEMM that streams its weight (streamed.cu) which several blocks have parts of: left in the
// stream's exchange, word by word, and added by the block that has the tile's first runs.
#pragma once

#include <cstdint>

#include "cuda/gemm/streamed_ring.cuh"

namespace octet::ops::cuda::stream_k {

/// No sum has these bits: what is no number has others (leave_partials()).
inline constexpr unsigned kNothing = 0xFFFFFFFFu;

/// Where this thread of a block leaves its sums, one quad behind the other.
template <typename C>
__device__ uint4* partials_of(const Streamed& args, int block) {
  return args.exchange + static_cast<std::int64_t>(block) * C::QUADS * kGroupThreads + threadIdx.x;
}
__device__ inline void leave_quad(uint4* to, const uint4& x) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
__device__ inline uint4 look_at_quad(const uint4* from) {
  uint4 x;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
__device__ inline bool there(const uint4& x) {
  return x.x != kNothing && x.y != kNothing && x.z != kNothing && x.w != kNothing;
}

/// Leaves a thread's sums for the block that has the tile's first runs, word by word: each is there as soon
/// as it is not kNothing, and needs no mark behind it.
template <typename C>
__device__ void leave_partials(const Streamed& args, const float (&sums)[C::SUMS]) {
  uint4* const to = partials_of<C>(args, static_cast<int>(blockIdx.x));
  const auto word = [&](int i) { return min(__float_as_uint(sums[i]), kNothing - 1); };
#pragma unroll
  for (int i = 0; i < C::QUADS; ++i) {
    leave_quad(to + i * kGroupThreads,
               make_uint4(word(4 * i), word(4 * i + 1), word(4 * i + 2), word(4 * i + 3)));
  }
}

/// Adds what the threads with this one's place have summed in `count` blocks from `first` on. What several
/// have left is asked for at once.
template <typename C>
__device__ void add_partials(const Streamed& args, int first, int count, float (&sums)[C::SUMS]) {
  constexpr int AT_ONCE = C::TOKENS <= 32 ? 3 : 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int begin = 0; begin < count; begin += AT_ONCE) {
    uint4 more[AT_ONCE][C::QUADS];
    bool all = false;
    while (!all) {
      // Who waits looks at little, since others still need the memory: at the last quad of each.
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
        leave_quad(from + i * kGroupThreads, make_uint4(kNothing, kNothing, kNothing, kNothing));
        sums[4 * i] += __uint_as_float(more[k][i].x);
        sums[4 * i + 1] += __uint_as_float(more[k][i].y);
        sums[4 * i + 2] += __uint_as_float(more[k][i].z);
        sums[4 * i + 3] += __uint_as_float(more[k][i].w);
      }
    }
  }
}

/// How many blocks behind this one have runs of a tile, of which this one has those up to `end`.
__device__ inline int blocks_behind(const Streamed& args, int end, int tile_end) {
  int count = 0;
  for (; end < tile_end; ++count) end = first_run(args, static_cast<int>(blockIdx.x) + count + 2);
  return count;
}

}  // namespace octet::ops::cuda::stream_k
