// The weights of a chain of GEMMs (lone_chain.cu): how they are cut, the thread that asks for them, and their
// products with a token.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/bulk_copies.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"
#include "cuda/warpgroup.cuh"
#include "octet/ops/lone_chain.h"

namespace octet::ops::cuda::chain {

using End = LoneGemmArgs::End;

inline constexpr int kOutputs = 64;    ///< of a tile
inline constexpr int kRowBytes = 128;  ///< of a row in a tile of the copy engine
inline constexpr int kWidth = 2;       ///< of these that a run of the inner dimension has
inline constexpr int kRunBytes = kWidth * kRowBytes;
inline constexpr int kTileBytes = kOutputs * kRowBytes;
inline constexpr int kStageBytes = kWidth * kTileBytes;
inline constexpr int kGroups = 4;  ///< warpgroups that multiply, each a part of every run
inline constexpr int kGroupThreads = 128;
inline constexpr int kWorkers = kGroups * kGroupThreads;  ///< threads that take tokens and multiply
inline constexpr int kThreads = kWorkers + kWarp;
inline constexpr int kMostStages = 12;

/// Runs on their way to a block at a time. More of them wait in front of the memory, and whatever else blocks
/// read waits behind them: between two GEMMs, where all wait for a few bytes of each other, fewer are asked
/// for. Measured on an H200 (docs/lab/decoding.md).
inline constexpr int kUnderWay = 3, kFewUnderWay = 2;
inline constexpr int kFirstRuns = 10;  ///< of a GEMM, for which fewer are asked for

struct Gemm {
  const float* weight_scales;  ///< [outputs]
  const __nv_bfloat16* x;      ///< of the first GEMM alone
  const float* norm_weight;
  float eps, one;
  const float* bias;
  const __nv_bfloat16* addend;
  __nv_bfloat16* y;
  const std::int32_t* position;
  const float *cosine, *sine;
  int rotated_heads, half_dim;
  End end;
  bool gelu;
  int inner, outputs;
  int runs, tiles;    ///< runs of a tile
  int tiles_of_head;  ///< rotated: of each head; else all
};

inline constexpr int kMostInner = 32768;
inline constexpr int kWordsOfToken = kMostInner / 2;
inline constexpr int kMostBlocks = 256;

struct Chain {
  CUtensorMap weights[kLoneChain];
  Gemm gemms[kLoneChain];
  int count, stages;
  unsigned* tokens[kLoneChain - 2];  ///< what the first GEMMs make, two values a word
  unsigned* last_tokens[2];          ///< what the last but one makes, in turns
  unsigned* partials;                ///< [blocks][kOutputs] sums of tiles that another block writes
  unsigned* turn;                    ///< whose first bit says which of last_tokens it is
};

/// A block's first run, counted through all tiles of a GEMM. Which block has a tile's first run depends on
/// how many tiles there are, and not on how long they are.
__device__ inline int first_run(const Gemm& g, int block) {
  const auto blocks = gridDim.x;
  return static_cast<int>(
      (static_cast<unsigned>(g.tiles * g.runs) * static_cast<unsigned>(block) + blocks - 1) / blocks);
}

/// What a block keeps beside the ring and the token.
struct Kept {
  float squares[kWorkers / kWarp];
  unsigned most[kWorkers / kWarp];
  float token_scale;
  float sums[2][kGroups - 1][kOutputs];  ///< of a tile and the next one, by the groups but the first
  Barrier filled[kMostStages], emptied[kMostStages];
};

/// An address or value that is to stay in a register: the compiler would make it anew at each use.
__device__ inline unsigned kept_value(unsigned x) {
  unsigned kept;
  asm volatile("mov.u32 %0, %1;" : "=r"(kept) : "r"(x));
  return kept;
}

/// A barrier of the workers; the thread that asks for weights has no part in it.
__device__ inline void meet_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

/// Where a tile begins in the copy engine's view of a weight (weight_map() in lone_chain.cu).
struct TilePlace {
  int group, head;
};
__device__ inline void copy_tile(unsigned to, const CUtensorMap& map, int column, const TilePlace& place,
                                 unsigned barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%3, %6, %6, %4, %5}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(place.group), "r"(place.head), "r"(0),
      "l"(static_cast<std::uint64_t>(Reread::never))
      : "memory");
#else
  __trap();
#endif
}

/// By one thread: asks for all weights of the block, of one GEMM after the other, as far ahead as the ring
/// holds. It waits for nothing but room.
__device__ inline void fill(const Chain& chain, std::uint8_t* data, Kept& kept) {
  const unsigned ring = kept_value(shared_address(data)), filled = kept_value(shared_address(kept.filled)),
                 emptied = kept_value(shared_address(kept.emptied));
  const int stages = chain.stages;
  int stage = 0, arrived = 0, under_way = 0;
  int phase = 1, arrived_phase = 0;
#pragma unroll 1
  for (int i = 0; i < chain.count; ++i) {
    const Gemm& g = chain.gemms[i];
    const int begin = first_run(g, static_cast<int>(blockIdx.x)), tile = begin / g.runs;
    const int runs = g.runs, groups = g.tiles_of_head * 4;
    const int count = first_run(g, static_cast<int>(blockIdx.x) + 1) - begin;
    TilePlace place{.group = tile % g.tiles_of_head * 4, .head = tile / g.tiles_of_head};
    int run = begin % runs;
#pragma unroll 1
    for (int done = 0; done < count; ++done) {
      wait_for_phase(emptied + static_cast<unsigned>(stage) * 8, phase);
      for (const int most = done < kFirstRuns ? kFewUnderWay : kUnderWay; under_way >= most; --under_way) {
        wait_for_phase(filled + static_cast<unsigned>(arrived) * 8, arrived_phase);
        if (++arrived == stages) {
          arrived = 0;
          arrived_phase ^= 1;
        }
      }
      ++under_way;
      const unsigned barrier = filled + static_cast<unsigned>(stage) * 8;
      arrive_for_bytes(barrier, kStageBytes);
#pragma unroll
      for (int part = 0; part < kWidth; ++part) {
        copy_tile(ring + static_cast<unsigned>(stage * kStageBytes + part * kTileBytes), chain.weights[i],
                  run * kRunBytes + part * kRowBytes, place, barrier);
      }
      if (++stage == stages) {
        stage = 0;
        phase ^= 1;
      }
      if (++run < runs) continue;
      run = 0;
      if ((place.group += 4) < groups) continue;
      place.group = 0;
      ++place.head;
    }
  }
}

/// The row of eight that a lane has: a quarter of a warp then reads all banks of shared memory.
__device__ inline int row_of(int lane) {
  return lane / 8 | (lane / 4 % 2) << 2;
}
/// Where the codes of four values of a token lie, so that products find them as the 16 bytes of a weight's
/// row that a lane has say: first the first four bytes of what four lanes have, then the second four, and so
/// on.
__device__ inline int place_of(int value) {
  const int word = value / 4 % 4, lane = value / 16 % 4;
  return value / 64 * 64 + (word * 4 + lane) * 4;
}

/// The products of 32 outputs and 64 values. A lane's 16 bytes are of one row of the weight, and stand where
/// the tensor cores have two rows: column 0 of the token makes the sums of bytes 0 to 3 and 8 to 11, column 1
/// those of the others. So columns of the token are 16 bytes apart, and the second half of the inner
/// dimension 32. The columns behind them are not looked at.
__device__ inline std::uint64_t token_operand(unsigned at) {
  return (at & 0x3FFFFu) >> 4 | std::uint64_t{2} << 16 | std::uint64_t{8} << 32;
}
__device__ inline void multiply(float (&d)[4], const uint4& weight, std::uint64_t token, bool adds) {
#ifdef OCTET_HAS_WARPGROUPS
  asm volatile(
      "{.reg .pred adds; setp.ne.b32 adds, %9, 0; wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, "
      "%1, %2, %3}, {%4, %5, %6, %7}, %8, adds, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(weight.x), "r"(weight.y), "r"(weight.z), "r"(weight.w), "l"(token), "r"(static_cast<int>(adds)));
#else
  __trap();
#endif
}
__device__ inline uint4 read_shared(unsigned at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

/// A thread's sums of two outputs: of lanes with a multiple of four. Others' are not looked at.
using Sums = float[2];

/// The sums of runs, one GEMM after the other.
class Products {
 public:
  __device__ Products(const Chain& chain, const std::uint8_t* ring, const std::uint8_t* token,
                      const Kept& kept)
      : token_(kept_value(shared_address(token) + group() * kChunks * kChunkBytes)),
        filled_(kept_value(shared_address(kept.filled))),
        emptied_(kept_value(shared_address(kept.emptied))),
        stages_(static_cast<unsigned>(chain.stages)) {
    const unsigned lane = threadIdx.x % kWarp, row = static_cast<unsigned>(row_of(static_cast<int>(lane)));
#pragma unroll
    for (unsigned j = 0; j < kChunks; ++j) {
      const unsigned chunk = group() * kChunks + j;
      const unsigned piece = (chunk % 2 * 4 + lane % 4) ^ row;  // as the copy engine exchanges them
      at_[j] = kept_value(shared_address(ring) + chunk / 2 * kTileBytes +
                          (threadIdx.x / kWarp % 4 * 16 + row) * kRowBytes + piece * 16);
    }
  }

  /// Adds what `count` runs from run `first` of a tile on make.
  __device__ void add_runs(int first, int count, Sums& sums) {
    if (count == 0) return;
    unsigned token = token_ + static_cast<unsigned>(first) * kRunBytes;
    float one[2][4], other[2][4];
    begin(token, one);
    // Two at a time: the second is multiplied while the first is added.
    for (int i = 1; i < count; i += 2) {
      begin(token += kRunBytes, other);
      end<1>(one, sums);
      if (i + 1 == count) return end<0>(other, sums);
      begin(token += kRunBytes, one);
      end<1>(other, sums);
    }
    end<0>(one, sums);
  }

 private:
  static constexpr unsigned kChunkBytes = 64;
  static constexpr unsigned kChunks = kRunBytes / kChunkBytes / kGroups;  ///< of a run and warpgroup

  __device__ static unsigned group() {
    return threadIdx.x / kGroupThreads;
  }
  __device__ void begin(unsigned token, float (&d)[2][4]) {
    wait_for_phase(filled_ + stage_ * 8, phase_);
    uint4 low[kChunks], high[kChunks];
#pragma unroll
    for (unsigned j = 0; j < kChunks; ++j) {
      low[j] = read_shared(at_[j] + data_);
      high[j] = read_shared(at_[j] + data_ + 8 * kRowBytes);
    }
    begin_products();
#pragma unroll
    for (unsigned j = 0; j < kChunks; ++j) {
      const std::uint64_t operand = token_operand(token + j * kChunkBytes);
      multiply(d[0], low[j], operand, j > 0);
      multiply(d[1], high[j], operand, j > 0);
    }
    end_products();
    __syncwarp();
    // By one thread of each warp, since warps may be behind each other: the stage may be filled again.
    if (threadIdx.x % kWarp == 0) arrive(emptied_ + stage_ * 8);
    data_ += kStageBytes;
    if (++stage_ < stages_) return;
    stage_ = data_ = 0;
    phase_ ^= 1;
  }
  template <int LEFT>
  __device__ static void end(float (&d)[2][4], Sums& sums) {
    wait_for_products<LEFT>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      take_sums(d[half]);
      sums[half] += d[half][0] + d[half][3];
    }
  }

  unsigned at_[kChunks];  ///< a lane's 16 bytes of the first stage
  unsigned token_, filled_, emptied_, stages_;
  unsigned stage_ = 0, data_ = 0;  ///< data_: bytes from the first stage
  int phase_ = 0;
};

}  // namespace octet::ops::cuda::chain
