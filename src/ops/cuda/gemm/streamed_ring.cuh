// The ring buffer of a GEMM that streams its weight (streamed.cu): how work is split, the warp that loads
// runs of the inner dimension, and the products of loaded runs.
#pragma once

#include <cstdint>

#include "cuda/bulk_copies.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"
#include "cuda/warpgroup.cuh"
#include "cuda/word_exchange.cuh"

namespace octet::ops::cuda::stream_k {

inline constexpr int kRowBytes = 128;  ///< bytes of an operand row in a tile of the copy engine
inline constexpr int kOutputs = 64;    ///< outputs of a warpgroup; a block has one warpgroup
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = kGroupThreads + kWarp;
inline constexpr int kSteps = 4;  ///< product instructions per kRowBytes
/// Number of runs that a block has not loaded yet when it lets the next kernel start. Small kernels that
/// start too early occupy resources and let the next GEMM start. Its ring would then fill while this GEMM
/// still needs the memory, and not in the pause between the kernels.
inline constexpr int kRunsLeft = 4;

/// Tile sizes. FP8: operands are in E4M3, else in bf16. TOKENS: tokens per tile. WIDTH: number of kRowBytes
/// of the inner dimension in a run. STAGES: runs in the ring. Measured on an H200: 80 to 120 KiB per ring.
/// With a larger ring, no block of attention (cached_decode.cuh) is resident at the same time. Such a block
/// loads its cache while the ring runs empty.
template <bool FP8_, int TOKENS_, int WIDTH_, int STAGES_>
struct Cut {
  static constexpr bool FP8 = FP8_;
  static constexpr int TOKENS = TOKENS_;
  static constexpr int WIDTH = WIDTH_;
  static constexpr int STAGES = STAGES_;
  static constexpr int SUMS = TOKENS / 2;  ///< sums of a thread
  static constexpr int QUADS = SUMS / 4;
  static constexpr int WEIGHT_BYTES = kOutputs * kRowBytes;
  static constexpr int TOKEN_BYTES = TOKENS * kRowBytes;
  static constexpr int STAGE_BYTES = (WEIGHT_BYTES + TOKEN_BYTES) * WIDTH;
  static constexpr std::size_t SHARED_BYTES = std::size_t{STAGES} * STAGE_BYTES + 1024;
};

struct Streamed {
  const float* a_scales;  ///< [tokens], for E4M3
  const float* b_scales;  ///< [outputs]
  const float* bias;      ///< [outputs], or null
  void* d;                ///< [tokens, d_ld], bf16 or f32
  const void* addend;     ///< in the layout of D, or null
  std::int64_t d_ld;
  uint4* exchange;  ///< sums of tiles that wait to be added; empty entries have all bits set
  int tokens, outputs;
  float factor = 1.0f;        ///< of the sums, for bf16
  int runs, tiles;            ///< runs per tile
  bool in_order = false;      ///< blocks have whole tiles; see multiply_streamed_in_order()
  bool adds_at_once = false;  ///< Addition::at_once
};

/// Returns the first run of a block, counted over all tiles.
__device__ inline int first_run(const Streamed& args, int block) {
  if (args.in_order)
    return static_cast<int>(static_cast<std::int64_t>(args.tiles) * block / gridDim.x) * args.runs;
  return static_cast<int>(static_cast<std::int64_t>(args.tiles) * args.runs * block / gridDim.x);
}

/// Position in the ring: a stage, and the phase that its barriers complete next.
template <typename C>
struct Place {
  int stage = 0, phase = 0;
  __device__ void advance() {
    if (++stage < C::STAGES) return;
    stage = 0;
    phase ^= 1;
  }
};

template <typename C>
struct Ring {
  std::uint8_t* data;
  Barrier* filled;   ///< [STAGES]
  Barrier* emptied;  ///< [STAGES]
  __device__ std::uint8_t* weight(int stage, int part) const {
    return data + stage * C::STAGE_BYTES + part * C::WEIGHT_BYTES;
  }
  __device__ std::uint8_t* tokens(int stage, int part) const {
    return data + stage * C::STAGE_BYTES + C::WIDTH * C::WEIGHT_BYTES + part * C::TOKEN_BYTES;
  }
};

/// Loads all runs of the block. Called by one thread.
template <typename C>
__device__ void fill(const Streamed& args, const CUtensorMap& weight, const CUtensorMap& tokens,
                     const Ring<C>& ring) {
  const int begin = first_run(args, static_cast<int>(blockIdx.x));
  const int end = first_run(args, static_cast<int>(blockIdx.x) + 1);
  const auto ask_weight = [&](int run, int stage) {
    arrive_for_bytes(ring.filled[stage], C::STAGE_BYTES);
    for (int part = 0; part < C::WIDTH; ++part) {
      copy_tile(ring.weight(stage, part), weight, run / args.runs * kOutputs,
                (run % args.runs * C::WIDTH + part) * kRowBytes, ring.filled[stage], Reread::never);
    }
  };
  const auto ask_tokens = [&](int run, int stage) {
    for (int part = 0; part < C::WIDTH; ++part) {
      copy_tile(ring.tokens(stage, part), tokens, 0, (run % args.runs * C::WIDTH + part) * kRowBytes,
                ring.filled[stage], Reread::often);
    }
  };
  const int ahead = min(C::STAGES, end - begin);
  // The weight does not depend on earlier kernels.
  for (int i = 0; i < ahead; ++i) ask_weight(begin + i, i);
  if (end - begin - ahead <= kRunsLeft) let_next_begin();
  wait_for_previous();
  for (int i = 0; i < ahead; ++i) ask_tokens(begin + i, i);
  Place<C> place;
  for (int run = begin + C::STAGES; run < end; ++run) {
    wait_for_phase(ring.emptied[place.stage], place.phase);
    ask_weight(run, place.stage);
    ask_tokens(run, place.stage);
    place.advance();
    if (end - run == kRunsLeft) let_next_begin();
  }
}

/// Starts the products of a run. `adds`: add to the previous sums, else start from zero.
template <typename C>
__device__ void begin_run(const Ring<C>& ring, const Place<C>& place, float (&sums)[C::SUMS], bool adds) {
  wait_for_phase(ring.filled[place.stage], place.phase);
  begin_multiplies();
#pragma unroll
  for (int part = 0; part < C::WIDTH; ++part) {
    const std::uint8_t* const outputs = ring.weight(place.stage, part);
    const std::uint8_t* const tokens = ring.tokens(place.stage, part);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = step * (kRowBytes / kSteps);
      warpgroup_multiply<C::FP8, C::TOKENS>(sums, warpgroup_operand(outputs + at),
                                            warpgroup_operand(tokens + at), adds || part + step > 0);
    }
  }
  end_multiplies();
}

template <int COUNT>
__device__ inline void add_sums(float (&sums)[COUNT], float (&more)[COUNT]) {
  take_sums(more);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] += more[i];
}

/// Marks the stage as free. Done by one thread of each warp, because warps progress independently.
template <typename C>
__device__ inline void leave(const Ring<C>& ring, int stage) {
  if (threadIdx.x % kWarp == 0) arrive(ring.emptied[stage]);
}

/// Sums `count` runs in E4M3 from `place` on. Tensor cores keep about 14 bits of a run; the sum over runs is
/// in fp32 with 24 bits.
template <typename C>
__device__ void sum_runs_apart(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  float first[C::SUMS], second[C::SUMS];
#pragma unroll
  for (int i = 0; i < C::SUMS; ++i) sums[i] = 0.0f;
  if (count % 2 != 0) {
    begin_run<C>(ring, place, first, false);
    wait_for_multiplies<0>();
    add_sums(sums, first);
    leave(ring, place.stage);
    place.advance();
  }
  // Two at a time: the second run is multiplied while the first is added.
  for (int i = count % 2; i < count; i += 2) {
    begin_run<C>(ring, place, first, false);
    const int before = place.stage;
    place.advance();
    begin_run<C>(ring, place, second, false);
    wait_for_multiplies<1>();
    add_sums(sums, first);
    leave(ring, before);
    wait_for_multiplies<0>();
    add_sums(sums, second);
    leave(ring, place.stage);
    place.advance();
  }
}

/// Sums `count` runs in bf16, entirely in fp32.
template <typename C>
__device__ void sum_runs_together(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  int before = 0;
  for (int i = 0; i < count; ++i) {
    begin_run<C>(ring, place, sums, i > 0);
    if (i > 0) {
      wait_for_multiplies<1>();
      leave(ring, before);
    }
    before = place.stage;
    place.advance();
  }
  wait_for_multiplies<0>();
  take_sums(sums);
  leave(ring, before);
}

template <typename C>
__device__ void sum_runs(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  if constexpr (C::FP8) {
    sum_runs_apart<C>(ring, place, count, sums);
  } else {
    sum_runs_together<C>(ring, place, count, sums);
  }
}

// Partial sums of a GEMM that streams its weight (streamed.cu). If several blocks contribute to a tile, they
// store their sums in the exchange buffer of the stream, word by word. The block with the first runs of the
// tile adds them.

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
