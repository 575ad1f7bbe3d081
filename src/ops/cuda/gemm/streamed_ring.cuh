// The ring of a GEMM that streams its weight (streamed.cu): how the work is cut, the warp that asks for runs
// of the inner dimension, and the products of those that have come.
#pragma once

#include <cstdint>

#include "cuda/bulk_copies.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"
#include "cuda/warpgroup.cuh"

namespace octet::ops::cuda::stream_k {

inline constexpr int kRowBytes = 128;  ///< of an operand's row in a tile of the copy engine
inline constexpr int kOutputs = 64;    ///< that a warpgroup makes, of which a block has one
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = kGroupThreads + kWarp;
inline constexpr int kSteps = 4;  ///< of a product's instruction in kRowBytes
/// Runs that a block has still to ask for when it lets the next kernel begin. Small kernels that begin at
/// once hold room and bring the next GEMM, whose ring then fills while this one needs the memory, and not in
/// the pause between them.
inline constexpr int kRunsLeft = 4;

/// How the work is cut: FP8 says whether operands are in E4M3 or bf16, TOKENS is what a tile has room for,
/// WIDTH how many kRowBytes of the inner dimension are a run, STAGES how many runs the ring holds. Measured
/// on an H200: 80 to 120 KiB a ring. Beside larger ones no block of attention stands (cached_lone.cuh), whose
/// cache would be on its way while a ring runs empty.
template <bool FP8_, int TOKENS_, int WIDTH_, int STAGES_>
struct Cut {
  static constexpr bool FP8 = FP8_;
  static constexpr int TOKENS = TOKENS_;
  static constexpr int WIDTH = WIDTH_;
  static constexpr int STAGES = STAGES_;
  static constexpr int SUMS = TOKENS / 2;  ///< of a thread
  static constexpr int QUADS = SUMS / 4;
  static constexpr int WEIGHT_BYTES = kOutputs * kRowBytes;
  static constexpr int TOKEN_BYTES = TOKENS * kRowBytes;
  static constexpr int STAGE_BYTES = (WEIGHT_BYTES + TOKEN_BYTES) * WIDTH;
  static constexpr std::size_t SHARED_BYTES = std::size_t{STAGES} * STAGE_BYTES + 1024;
};

struct Streamed {
  const float* a_scales;  ///< [tokens], of E4M3
  const float* b_scales;  ///< [outputs]
  const float* bias;      ///< [outputs], or null
  void* d;                ///< [tokens, d_ld], bf16 or f32
  const void* addend;     ///< as D lies, or null
  std::int64_t d_ld;
  uint4* exchange;  ///< sums of tiles that wait to be added; all bits set where none do
  int tokens, outputs;
  int runs, tiles;            ///< runs of a tile
  bool in_order = false;      ///< see multiply_streamed_in_order(): blocks have whole tiles
  bool adds_at_once = false;  ///< Addition::at_once
};

/// The runs of a block, counted through all tiles.
__device__ inline int first_run(const Streamed& args, int block) {
  if (args.in_order)
    return static_cast<int>(static_cast<std::int64_t>(args.tiles) * block / gridDim.x) * args.runs;
  return static_cast<int>(static_cast<std::int64_t>(args.tiles) * args.runs * block / gridDim.x);
}

/// Where the ring stands: a stage, and the phase that its barriers end next.
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

/// By one thread: asks for all runs of the block.
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
  // The weight does not depend on the kernels in front of this one.
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

/// Begins the products of a run; `adds`: to what the sums are, else to zero.
template <typename C>
__device__ void begin_run(const Ring<C>& ring, const Place<C>& place, float (&sums)[C::SUMS], bool adds) {
  wait_for_phase(ring.filled[place.stage], place.phase);
  begin_products();
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
  end_products();
}

template <int COUNT>
__device__ inline void add_sums(float (&sums)[COUNT], float (&more)[COUNT]) {
  take_sums(more);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] += more[i];
}

/// By one thread of each warp, since warps may be behind each other: the stage may be filled again.
template <typename C>
__device__ inline void leave(const Ring<C>& ring, int stage) {
  if (threadIdx.x % kWarp == 0) arrive(ring.emptied[stage]);
}

/// Sums `count` runs in E4M3 from `place` on. Of a run the tensor cores keep about 14 bits, of all runs fp32
/// keeps 24.
template <typename C>
__device__ void sum_runs_apart(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  float first[C::SUMS], second[C::SUMS];
#pragma unroll
  for (int i = 0; i < C::SUMS; ++i) sums[i] = 0.0f;
  if (count % 2 != 0) {
    begin_run<C>(ring, place, first, false);
    wait_for_products<0>();
    add_sums(sums, first);
    leave(ring, place.stage);
    place.advance();
  }
  // Two at a time: the second is multiplied while the first is added.
  for (int i = count % 2; i < count; i += 2) {
    begin_run<C>(ring, place, first, false);
    const int before = place.stage;
    place.advance();
    begin_run<C>(ring, place, second, false);
    wait_for_products<1>();
    add_sums(sums, first);
    leave(ring, before);
    wait_for_products<0>();
    add_sums(sums, second);
    leave(ring, place.stage);
    place.advance();
  }
}

/// The same in bf16, whose sums are fp32 throughout.
template <typename C>
__device__ void sum_runs_together(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  int before = 0;
  for (int i = 0; i < count; ++i) {
    begin_run<C>(ring, place, sums, i > 0);
    if (i > 0) {
      wait_for_products<1>();
      leave(ring, before);
    }
    before = place.stage;
    place.advance();
  }
  wait_for_products<0>();
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

}  // namespace octet::ops::cuda::stream_k
