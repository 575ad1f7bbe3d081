// The tiles of the GEMMs of experts (expert_gemm.cuh), and the copies of their operands. A block computes
// tiles of 128 by 256 or 128 columns in sequence. One thread starts copies of runs of 128 bytes of the inner
// dimension, as many ahead as the ring holds. It also loads the next tile while the current tile is written.
// Two blocks form a cluster.
#pragma once

#include "cuda/bulk_copies.cuh"
#include "cuda/experts/grouped_gemm.cuh"
#include "octet/ops/expert_gemm.h"

namespace octet::ops::cuda {

constexpr int kRunBytes = 128;  ///< bytes of a row per copy
constexpr int kBox = 64;        ///< rows of a copy-engine box
constexpr int kBoxBytes = kBox * kRunBytes;
constexpr int kGroups = 2, kGroupRows = 64, kGroupThreads = 128;
constexpr int kRows = kGroups * kGroupRows;
/// Blocks of a cluster. Their tiles are neighbours (Placing), so that they share the copies of an operand.
constexpr int kBlocks = 2, kClusterRows = kBlocks * kRows;
constexpr int kRingBytes = 192 * 1024;
/// Registers are assigned per warpgroup. The warpgroup of the copying thread leaves most registers to the
/// others.
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kFewRegisters = 40, kManyRegisters = 232;
constexpr int kWarpRows = kGroupRows * kWarp / kGroupThreads;  ///< rows of a warp
constexpr int kSteps = 4;                                      ///< product instructions per run

/// The products of a kernel in bf16. The instructions transpose operands.
struct Bf16Tiles {
  static constexpr bool FP8 = false, PROMOTED = false;
  static constexpr int COLUMNS = 256;  ///< of a tile
  static constexpr int RUN = 64;       ///< values of the inner dimension per copy
};
/// The products of a kernel in FP8. Operands are contiguous along the inner dimension. PROMOTED_SUMS: sums of
/// a run, which have about 14 bits, are added up in fp32. This takes registers, so the tiles are narrower.
template <bool A_IS_E5M2, bool PROMOTED_SUMS>
struct Fp8Tiles {
  static constexpr bool FP8 = true, A_E5M2 = A_IS_E5M2, PROMOTED = PROMOTED_SUMS;
  static constexpr int COLUMNS = PROMOTED ? 128 : 256;
  static constexpr int RUN = 128;
};
/// Sizes that depend on the columns of a tile.
template <typename F>
struct Sizes {
  static constexpr int BOXES_OF_B = F::COLUMNS / kBox;
  static constexpr int STAGE_BYTES = (kGroups + BOXES_OF_B) * kBoxBytes;
  static constexpr int STAGES = kRingBytes / STAGE_BYTES;
  static constexpr int SUMS = F::COLUMNS / 2;  ///< sums per thread
};

/// ExpertGemmArgs for the kernel.
struct Work {
  Grouped experts;  ///< only `begins` and `count` are used
  int rows;         ///< wgrad only: rows of the matrix of an expert
  int columns;      ///< columns of d
  int inner;        ///< forward and dgrad: the inner dimension
  int weight_rows;  ///< weight rows of an expert
  void* d;
  std::int64_t d_ld;
  bool adds;
  const float *a_scale, *b_scale;  ///< FP8 only; null: 1
  std::int64_t b_scale_step;       ///< distance between the scales of two experts
};

/// A tile: rows [first_row, first_row + rows) of a, or of the matrix of an expert, and columns from `column`
/// on.
struct Tile {
  int expert, first_row, rows, column;
};

template <typename F>
struct Ring {
  std::uint8_t* data;
  Barrier* filled;
  Barrier* emptied;
  int stage = 0, phase = 0;
  __device__ std::uint8_t* a() const { return data + stage * Sizes<F>::STAGE_BYTES; }
  __device__ std::uint8_t* b() const { return a() + kGroups * kBoxBytes; }
  __device__ void advance() {
    if (++stage < Sizes<F>::STAGES) return;
    stage = 0;
    phase ^= 1;
  }
};

/// The rows of an expert as the inner dimension of wgrad. In FP8 the copy engine reads whole pieces of 16
/// rows, so the first piece may begin with rows of the previous expert.
struct InnerRows {
  int start, end;  ///< rows of the matrix
  int before;      ///< rows from `start` that belong to another expert
};
template <typename F>
__device__ InnerRows inner_rows(const Work& w, int expert) {
  const int first = w.experts.begins[expert], end = w.experts.begins[expert + 1];
  const int start = F::FP8 ? first / 16 * 16 : first;
  return {start, end, first - start};
}

template <GemmKind P, typename F>
__device__ int runs_of(const Work& w, const Tile& tile) {
  if constexpr (P == GemmKind::wgrad) {
    const InnerRows rows = inner_rows<F>(w, tile.expert);
    return rows.start + rows.before == rows.end ? 0 : (rows.end - rows.start + F::RUN - 1) / F::RUN;
  } else {
    return (w.inner + F::RUN - 1) / F::RUN;
  }
}

/// Returns the index of this block in its cluster.
__device__ inline int block_of_cluster() {
  return static_cast<int>(blockIdx.x) % kBlocks;
}

/// How the tiles of the two blocks of a cluster are placed. stacked: the second tile has the next rows, and
/// both need the same columns of b. side_by_side: the second tile has the next columns, and both need the
/// same rows of a.
enum class Placing { stacked, side_by_side };

/// Rows of the groups that each_tile() divides the rows of experts into.
template <Placing PLACING>
inline constexpr int kGroupedRows = PLACING == Placing::stacked ? kClusterRows : kRows;

/// Calls act(tile) for the tiles of this block, in order. Both blocks of a cluster have the same number of
/// tiles, and some tiles may have no rows.
template <GemmKind P, typename F, Placing PLACING, typename Act>
__device__ void each_tile(const Work& w, const Groups<kGroupedRows<PLACING>>& groups, Act&& act) {
  constexpr bool side_by_side = PLACING == Placing::side_by_side;
  constexpr int columns = side_by_side ? kBlocks * F::COLUMNS : F::COLUMNS;
  const int across = (w.columns + columns - 1) / columns;
  const int begin = static_cast<int>(blockIdx.x) / kBlocks, step = static_cast<int>(gridDim.x) / kBlocks;
  const int own_row = side_by_side ? 0 : block_of_cluster() * kRows;
  const int own_column = side_by_side ? block_of_cluster() * F::COLUMNS : 0;
  const auto rows_of = [&](int all) { return max(0, min(kRows, all - own_row)); };
  if constexpr (P == GemmKind::wgrad) {
    static_assert(!side_by_side, "wgrad has stacked tiles");
    const int down = (w.rows + kClusterRows - 1) / kClusterRows;
    for (int i = begin; i < w.experts.count * down * across; i += step) {
      const int at = i % (down * across), first = at / across * kClusterRows;
      act(Tile{i / (down * across), first + own_row, rows_of(w.rows - first), at % across * columns});
    }
  } else {
    for (int i = begin; i < groups.count(w.experts) * across; i += step) {
      const Item item = groups.item(w.experts, across, i);
      act(Tile{item.expert, item.first_row + own_row, rows_of(item.rows), item.tile * columns + own_column});
    }
  }
}

/// Like copy_tile(), but writes the tile to the same address in all blocks of the cluster. The barrier of
/// each block counts its bytes.
__device__ inline void copy_tile_to_cluster(void* to, const CUtensorMap& map, int row, int column,
                                            Barrier& barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr std::uint16_t all_blocks = (1 << kBlocks) - 1;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
      "cache_hint [%0], "
      "[%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "h"(all_blocks),
      "l"(static_cast<std::uint64_t>(Reread::often))
      : "memory");
#else
  __trap();
#endif
}
template <bool TO_CLUSTER>
__device__ void copy_box(void* to, const CUtensorMap& map, int row, int column, Barrier& barrier) {
  TO_CLUSTER ? copy_tile_to_cluster(to, map, row, column, barrier)
             : copy_tile(to, map, row, column, barrier, Reread::often);
}
/// Arrives at the barrier with this address in a block of the cluster.
__device__ inline void arrive_in_block(Barrier& barrier, int block) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, "
      "[there];}" ::"r"(shared_address(&barrier)),
      "r"(block)
      : "memory");
#endif
}
/// Waits for all running threads of the cluster.
__device__ inline void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/// Where a run begins in an operand: row, and byte of the row.
struct RunStart {
  int row, byte;
};
/// Returns where box `c` of b begins: `column` is its first column of d.
template <GemmKind P, typename F>
__device__ RunStart start_of_b(const Work& w, const Tile& tile, int inner, int column) {
  const int weight = tile.expert * w.weight_rows;
  if constexpr (F::FP8) {
    if constexpr (P == GemmKind::wgrad) return {column, inner_rows<F>(w, tile.expert).start + inner};
    return {weight + column, inner};
  } else {
    if constexpr (P == GemmKind::forward) return {weight + column, 2 * inner};
    return {P == GemmKind::dgrad ? weight + inner : w.experts.begins[tile.expert] + inner, 2 * column};
  }
}
/// Returns where a box of a with the first row `first` of the tile begins.
template <GemmKind P, typename F>
__device__ RunStart start_of_a(const Work& w, const Tile& tile, int inner, int first) {
  if constexpr (P != GemmKind::wgrad) return {first, inner * kRunBytes / F::RUN};
  const int row = inner_rows<F>(w, tile.expert).start + inner;
  if constexpr (F::FP8) return {first, row};
  return {row, 2 * first};
}

/// Loads all runs of the block. Called by one thread. Boxes may include rows of the next expert.
template <GemmKind P, typename F, Placing PLACING>
__device__ void fill(const Work& w, const Groups<kGroupedRows<PLACING>>& groups, const CUtensorMap& a,
                     const CUtensorMap& b, Ring<F> ring) {
  // Both blocks read the same rows of a, or the same columns of b. Each block loads its part of them for
  // both.
  constexpr bool shares_a = PLACING == Placing::side_by_side;
  constexpr int boxes_of_a = shares_a ? kGroups / kBlocks : kGroups;
  constexpr int boxes_of_b = shares_a ? Sizes<F>::BOXES_OF_B : Sizes<F>::BOXES_OF_B / kBlocks;
  const int first_of_a = shares_a ? block_of_cluster() * boxes_of_a : 0;
  const int first_of_b = shares_a ? 0 : block_of_cluster() * boxes_of_b;
  each_tile<P, F, PLACING>(w, groups, [&](const Tile& tile) {
    const int runs = runs_of<P, F>(w, tile);
    for (int run = 0; run < runs; ++run) {
      wait_for_phase(ring.emptied[ring.stage], ring.phase ^ 1);
      Barrier& filled = ring.filled[ring.stage];
      arrive_for_bytes(filled, Sizes<F>::STAGE_BYTES);
      const int inner = run * F::RUN;
#pragma unroll
      for (int part = 0; part < boxes_of_a; ++part) {
        const int g = first_of_a + part;
        const RunStart from = start_of_a<P, F>(w, tile, inner, tile.first_row + g * kBox);
        copy_box<shares_a>(ring.a() + g * kBoxBytes, a, from.row, from.byte, filled);
      }
#pragma unroll
      for (int part = 0; part < boxes_of_b; ++part) {
        const int c = first_of_b + part;
        const RunStart from = start_of_b<P, F>(w, tile, inner, tile.column + c * kBox);
        copy_box<!shares_a>(ring.b() + c * kBoxBytes, b, from.row, from.byte, filled);
      }
      ring.advance();
    }
  });
}

}  // namespace octet::ops::cuda
