// The weights of a chain of GEMMs (decode_chain.cu): how blocks divide them, the thread that loads them, and
// their multiplication with a token. "Copy engine" means the tensor memory accelerator (TMA).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/bulk_copies.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"
#include "cuda/warpgroup.cuh"
#include "octet/ops/decode_gemm.h"

namespace octet::ops::cuda::chain {

using End = DecodeGemmArgs::End;

inline constexpr int kOutputs = 64;    ///< outputs of a tile
inline constexpr int kRowBytes = 128;  ///< bytes of a row in a tile that the copy engine loads
inline constexpr int kWidth = 2;       ///< copy-engine tiles in a run of the inner dimension
inline constexpr int kRunBytes = kWidth * kRowBytes;
inline constexpr int kTileBytes = kOutputs * kRowBytes;
inline constexpr int kStageBytes = kWidth * kTileBytes;
inline constexpr int kGroups = 4;  ///< warpgroups that multiply; each takes a part of every run
inline constexpr int kGroupThreads = 128;
inline constexpr int kWorkers = kGroups * kGroupThreads;  ///< threads that read tokens and multiply
inline constexpr int kThreads = kWorkers + kWarp;
inline constexpr int kMostStages = 12;

/// Maximum number of runs in flight per block. More runs would queue at the memory, and other loads of the
/// blocks would wait for them. Between two GEMMs, all blocks wait for a few bytes from each other, so fewer
/// runs are in flight. Measured on an H200 (docs/lab/decoding.md).
inline constexpr int kUnderWay = 3, kFewUnderWay = 2;
inline constexpr int kFirstRuns = 10;  ///< runs at the start of a GEMM that use kFewUnderWay

struct Gemm {
  const float* weight_scales;  ///< [outputs]
  const __nv_bfloat16* x;      ///< for the first GEMM only
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
  int runs, tiles;    ///< runs per tile
  int tiles_of_head;  ///< rotated: tiles per head; otherwise all tiles
};

inline constexpr int kMostInner = 32768;
inline constexpr int kWordsOfToken = kMostInner / 2;
inline constexpr int kMostBlocks = 256;

struct Chain {
  CUtensorMap weights[kDecodeChain];
  Gemm gemms[kDecodeChain];
  int count, stages;
  unsigned* tokens[kDecodeChain - 2];  ///< outputs of the first GEMMs, two values per word
  unsigned* last_tokens[2];            ///< output of the last GEMM but one, in alternating buffers
  unsigned* partials;                  ///< [blocks][kOutputs] sums of tiles that another block writes
  unsigned* turn;                      ///< the first bit selects one of last_tokens
};

/// Returns the first run of a block, counted over all tiles of a GEMM. The block of the first run of a tile
/// depends only on the number of tiles, not on their length.
__device__ inline int first_run(const Gemm& g, int block) {
  const auto blocks = gridDim.x;
  return static_cast<int>(
      (static_cast<unsigned>(g.tiles * g.runs) * static_cast<unsigned>(block) + blocks - 1) / blocks);
}

/// Static shared memory of a block, in addition to the ring and the token.
struct Kept {
  float squares[kWorkers / kWarp];
  unsigned most[kWorkers / kWarp];
  float token_scale;
  float sums[2][kGroups - 1][kOutputs];  ///< sums of two consecutive tiles by all groups except the first
  Barrier filled[kMostStages], emptied[kMostStages];
};

/// Keeps an address or value in a register. Otherwise the compiler recomputes it at each use.
__device__ inline unsigned kept_value(unsigned x) {
  unsigned kept;
  asm volatile("mov.u32 %0, %1;" : "=r"(kept) : "r"(x));
  return kept;
}

/// Barrier of the workers. The thread that loads weights does not take part.
__device__ inline void meet_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

/// Start of a tile in the copy-engine view of a weight (weight_map() in decode_chain.cu).
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

/// Loads all weights of the block, GEMM after GEMM, as far ahead as the ring permits. It waits only for free
/// space. Called by one thread.
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

/// Returns the row of eight for a lane, so that a quarter of a warp reads all banks of shared memory.
__device__ inline int row_of(int lane) {
  return lane / 8 | (lane / 4 % 2) << 2;
}
/// Returns the offset of the codes of four values of a token. The order matches the 16 bytes of a weight row
/// in each of four lanes: first bytes 0 to 3 of all four lanes, then bytes 4 to 7 of all four lanes, and so
/// on.
__device__ inline int place_of(int value) {
  const int word = value / 4 % 4, lane = value / 16 % 4;
  return value / 64 * 64 + (word * 4 + lane) * 4;
}

/// The products of 32 outputs and 64 values. The 16 bytes of a lane are from one weight row, but the tensor
/// cores interpret them as two rows. Column 0 of the token gives the sums of bytes 0 to 3 and 8 to 11, and
/// column 1 gives the sums of the other bytes. So columns of the token are 16 bytes apart, and the second
/// half of the inner dimension is 32 bytes apart. Later columns are ignored.
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

/// Sums of two outputs of a thread. Valid in lanes that are multiples of four; ignored in other lanes.
using Sums = float[2];

/// Sums runs, GEMM after GEMM.
class Gemms {
 public:
  __device__ Gemms(const Chain& chain, const std::uint8_t* ring, const std::uint8_t* token, const Kept& kept)
      : token_(kept_value(shared_address(token) + group() * kChunks * kChunkBytes)),
        filled_(kept_value(shared_address(kept.filled))),
        emptied_(kept_value(shared_address(kept.emptied))),
        stages_(static_cast<unsigned>(chain.stages)) {
    const unsigned lane = threadIdx.x % kWarp, row = static_cast<unsigned>(row_of(static_cast<int>(lane)));
#pragma unroll
    for (unsigned j = 0; j < kChunks; ++j) {
      const unsigned chunk = group() * kChunks + j;
      const unsigned piece = (chunk % 2 * 4 + lane % 4) ^ row;  // swizzled by the copy engine
      at_[j] = kept_value(shared_address(ring) + chunk / 2 * kTileBytes +
                          (threadIdx.x / kWarp % 4 * 16 + row) * kRowBytes + piece * 16);
    }
  }

  /// Adds the products of `count` runs, starting with run `first` of a tile.
  __device__ void add_runs(int first, int count, Sums& sums) {
    if (count == 0) return;
    unsigned token = token_ + static_cast<unsigned>(first) * kRunBytes;
    float one[2][4], other[2][4];
    begin(token, one);
    // Two at a time: the second run is multiplied while the first is added.
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
  static constexpr unsigned kChunks = kRunBytes / kChunkBytes / kGroups;  ///< per run and warpgroup

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
    begin_multiplies();
#pragma unroll
    for (unsigned j = 0; j < kChunks; ++j) {
      const std::uint64_t operand = token_operand(token + j * kChunkBytes);
      multiply(d[0], low[j], operand, j > 0);
      multiply(d[1], high[j], operand, j > 0);
    }
    end_multiplies();
    __syncwarp();
    // Marks the buffer as free. Done by one thread of each warp, because warps progress independently.
    if (threadIdx.x % kWarp == 0) arrive(emptied_ + stage_ * 8);
    data_ += kStageBytes;
    if (++stage_ < stages_) return;
    stage_ = data_ = 0;
    phase_ ^= 1;
  }
  template <int LEFT>
  __device__ static void end(float (&d)[2][4], Sums& sums) {
    wait_for_multiplies<LEFT>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      take_sums(d[half]);
      sums[half] += d[half][0] + d[half][3];
    }
  }

  unsigned at_[kChunks];  ///< the 16 bytes of a lane in the first buffer
  unsigned token_, filled_, emptied_, stages_;
  unsigned stage_ = 0, data_ = 0;  ///< data_: bytes from the first buffer
  int phase_ = 0;
};

}  // namespace octet::ops::cuda::chain
