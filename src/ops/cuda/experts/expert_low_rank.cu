// The GEMMs of the adapters of experts (expert_low_rank.h). One side of each matrix of an expert is a rank,
// so the kernels are bound by memory. Each reads the rows of tokens once. There are three kernels:
//   narrow  a row of d has the columns of a rank, and the inner dimension is wide
//   wide    the inner dimension is a rank, and d is wide
//   sums    sums over the rows of an expert (wgrad)
// Copies to shared memory run ahead of tensor cores. Rows in shared memory are an odd number of 16 bytes
// apart, so that loads of matrices have no bank conflicts.
#include <algorithm>

#include "cuda/mma.cuh"
#include "cuda/rows.cuh"
#include "octet/base/error.h"
#include "octet/device/cuda.h"
#include "octet/ops/expert_low_rank.h"

namespace octet::ops::cuda {

bool has_expert_low_rank();
void expert_low_rank(Stream& stream, const ExpertLowRankArgs& args);

namespace {

using Bf16 = __nv_bfloat16;

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kTileRows = 128;                   ///< rows of an expert that a block multiplies
constexpr int kWarpRows = kTileRows / kWarps;    ///< rows of a warp
constexpr int kRun = 64;                         ///< columns of a row per copied run
constexpr int kGap = 8;                          ///< elements between two rows in shared memory
constexpr int kCopied = 8;                       ///< elements of a copy
constexpr int kPartRuns = 8;                     ///< runs of columns of a block, if d is wide
constexpr int kSumRows = 64, kSumColumns = 128;  ///< rows of a copied run, and columns of a block, of sums

/// The copied runs that a block holds. With large ranks, fewer of them fit.
template <int RANK>
inline constexpr int kStages = RANK <= 64 ? 3 : 2;

/// ExpertLowRankArgs for the kernels.
struct LowRankWork {
  const Bf16* a;
  std::int64_t a_ld;
  const Bf16* b;
  std::int64_t b_ld;  ///< of sums only; otherwise rows of b are contiguous
  std::int64_t step;  ///< elements between the matrices of two experts
  const std::int32_t* begins;
  int count;
  int inner, columns;  ///< sums: the rank, and the wide dimension
  void* d;
  std::int64_t d_ld;
  float factor;
  bool adds;
};

/// Some rows of an expert.
struct RowTile {
  int expert, first, rows;
};

/// Finds tile number `wanted` of at most kTileRows rows of one expert. Called by all threads of the block.
/// Returns false if there are fewer tiles.
__device__ bool find_tile(const std::int32_t* begins, int count, int wanted, RowTile& tile) {
  __shared__ int totals[kWarps];
  __shared__ RowTile found;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  int before = 0;
  for (int first = 0; first < count; first += kThreads) {
    const int e = first + thread;
    const int begin = e < count ? begins[e] : 0, rows = e < count ? begins[e + 1] - begin : 0;
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    int end = tiles;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int lower = __shfl_up_sync(0xFFFFFFFFu, end, step);
      if (lane >= step) end += lower;
    }
    if (lane == kWarp - 1) totals[warp] = end;
    __syncthreads();
    int start = before + end - tiles;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) start += totals[w];
      before += totals[w];
    }
    if (wanted >= start && wanted < start + tiles) {
      const int skipped = (wanted - start) * kTileRows;
      found = {e, begin + skipped, min(kTileRows, rows - skipped)};
    }
    __syncthreads();
    if (wanted < before) {
      tile = found;
      return true;
    }
  }
  return false;
}

/// Starts copies of a matrix [ROWS, COLUMNS] to shared memory, with rows of COLUMNS + kGap elements. Elements
/// outside of the first `rows` rows and `columns` columns become 0.
template <int ROWS, int COLUMNS>
__device__ void copy_matrix(Bf16* to, const Bf16* from, std::int64_t ld, int rows, int columns) {
  constexpr int across = COLUMNS / kCopied, all = ROWS * across;
  static_assert(COLUMNS % kCopied == 0 && all % kThreads == 0);
#pragma unroll
  for (int first = 0; first < all; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const int row = i / across, column = i % across * kCopied;
    const bool inside = row < rows && column < columns;
    copy_16(to + row * (COLUMNS + kGap) + column, inside ? from + row * ld + column : from, inside);
  }
}

/// Loads a [16, 16] of a multiplication from the upper left element of a matrix [m, k] in shared memory.
template <int PITCH>
__device__ void load_a(std::uint32_t (&to)[4], const Bf16* from) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(to, from + lane % 16 * PITCH + lane / 16 * 8);
}
/// Likewise from a matrix [k, m].
template <int PITCH>
__device__ void load_a_transposed(std::uint32_t (&to)[4], const Bf16* from) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_transposed(to, from + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8);
}
/// Loads b [16, 16] of two multiplications from a matrix [n, k]. The first has elements 0 and 1.
template <int PITCH>
__device__ void load_b(std::uint32_t (&to)[4], const Bf16* from) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(to, from + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8);
}
/// Likewise from a matrix [k, n].
template <int PITCH>
__device__ void load_b_transposed(std::uint32_t (&to)[4], const Bf16* from) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_transposed(to, from + lane % 16 * PITCH + lane / 16 * 8);
}

/// Returns product + addend, or the product, in bf16.
__device__ inline std::uint32_t rounded_pair(float x, float y, bool adds, std::uint32_t addend) {
  if (adds) {
    x += low_half(addend);
    y += high_half(addend);
  }
  return packed(from_float<Bf16>(x), from_float<Bf16>(y));
}

// --- narrow --------------------------------------------------------------------------------------------

/// Shared memory of a stage: a run of rows of a, and a run of the expert's matrix, [RANK, run] in forward and
/// [run, RANK] in dgrad.
template <GemmKind P, int RANK>
struct NarrowStage {
  static constexpr int A = kTileRows * (kRun + kGap);
  static constexpr int B = P == GemmKind::forward ? RANK * (kRun + kGap) : kRun * (RANK + kGap);
  static constexpr int ELEMENTS = A + B;
};

/// A block computes the rows of a tile, with all columns.
template <GemmKind P, int RANK>
__global__ void __launch_bounds__(kThreads) low_rank_narrow_kernel(const LowRankWork w) {
  using Stage = NarrowStage<P, RANK>;
  constexpr bool forward = P == GemmKind::forward;
  constexpr int stages = kStages<RANK>;
  RowTile tile;
  if (!find_tile(w.begins, w.count, static_cast<int>(blockIdx.x), tile)) return;
  Bf16* const shared = reinterpret_cast<Bf16*>(dynamic_shared());
  const Bf16* const a = w.a + tile.first * w.a_ld;
  const Bf16* const b = w.b + tile.expert * w.step;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int runs = (w.inner + kRun - 1) / kRun;
  const auto copy = [&](int run) {
    Bf16* const to = shared + run % stages * Stage::ELEMENTS;
    const int first = run * kRun, left = w.inner - first;
    copy_matrix<kTileRows, kRun>(to, a + first, w.a_ld, tile.rows, left);
    if constexpr (forward) {
      copy_matrix<RANK, kRun>(to + Stage::A, b + first, w.inner, w.columns, left);
    } else {
      copy_matrix<kRun, RANK>(to + Stage::A, b + static_cast<std::int64_t>(first) * w.columns, w.columns,
                              left, w.columns);
    }
  };
  float sums[2][RANK / 8][4] = {};
#pragma unroll
  for (int run = 0; run < stages - 1; ++run) {
    if (run < runs) copy(run);
    end_copies();
  }
  for (int run = 0; run < runs; ++run) {
    wait_for_copies<stages - 2>();
    __syncthreads();
    if (run + stages - 1 < runs) copy(run + stages - 1);
    end_copies();
    if (warp * kWarpRows >= tile.rows) continue;
    const Bf16* const rows = shared + run % stages * Stage::ELEMENTS + warp * kWarpRows * (kRun + kGap);
    const Bf16* const weight = shared + run % stages * Stage::ELEMENTS + Stage::A;
#pragma unroll
    for (int k = 0; k < kRun; k += 16) {
      std::uint32_t x[2][4];
      load_a<kRun + kGap>(x[0], rows + k);
      load_a<kRun + kGap>(x[1], rows + 16 * (kRun + kGap) + k);
#pragma unroll
      for (int n = 0; n < RANK; n += 16) {
        std::uint32_t y[4];
        if constexpr (forward) {
          load_b<kRun + kGap>(y, weight + n * (kRun + kGap) + k);
        } else {
          load_b_transposed<RANK + kGap>(y, weight + k * (RANK + kGap) + n);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(sums[m][n / 8], x[m], y[0], y[1]);
          multiply_add(sums[m][n / 8 + 1], x[m], y[2], y[3]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * kWarpRows + m * 16 + half * 8 + lane / 4;
      if (row >= tile.rows) continue;
      Bf16* const d = static_cast<Bf16*>(w.d) + (tile.first + row) * w.d_ld;
#pragma unroll
      for (int n = 0; n < RANK / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= w.columns) continue;
        auto* const to = reinterpret_cast<std::uint32_t*>(d + column);
        *to = rounded_pair(w.factor * sums[m][n][2 * half], w.factor * sums[m][n][2 * half + 1], w.adds,
                           w.adds ? *to : 0);
      }
    }
  }
}

// --- wide ----------------------------------------------------------------------------------------------

/// Shared memory of a stage: a run of rows of d, and a run of the expert's matrix, [run, RANK] in forward and
/// [RANK, run] in dgrad. Before the stages: the rows of a.
template <GemmKind P, int RANK>
struct WideStage {
  static constexpr int D = kTileRows * (kRun + kGap);
  static constexpr int B = P == GemmKind::forward ? kRun * (RANK + kGap) : RANK * (kRun + kGap);
  static constexpr int ELEMENTS = D + B;
  static constexpr int A = kTileRows * (RANK + kGap);
};

/// A block computes some columns of the rows of a tile. A warp writes its outputs over the values that they
/// are added to, in shared memory, and then writes whole rows.
template <GemmKind P, int RANK>
__global__ void __launch_bounds__(kThreads) low_rank_wide_kernel(const LowRankWork w) {
  using Stage = WideStage<P, RANK>;
  constexpr bool forward = P == GemmKind::forward;
  constexpr int stages = kStages<RANK>, pitch = kRun + kGap, steps = RANK / 16;
  const int all_runs = (w.columns + kRun - 1) / kRun, parts = (all_runs + kPartRuns - 1) / kPartRuns;
  const int block = static_cast<int>(blockIdx.x);
  RowTile tile;
  if (!find_tile(w.begins, w.count, block / parts, tile)) return;
  const int first_run = block % parts * kPartRuns, runs = min(kPartRuns, all_runs - first_run);
  Bf16* const rows = reinterpret_cast<Bf16*>(dynamic_shared());
  Bf16* const shared = rows + Stage::A;
  const Bf16* const b = w.b + tile.expert * w.step;
  Bf16* const d = static_cast<Bf16*>(w.d) + tile.first * w.d_ld;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto copy = [&](int run) {
    Bf16* const to = shared + run % stages * Stage::ELEMENTS;
    const int first = (first_run + run) * kRun, left = w.columns - first;
    if (w.adds) copy_matrix<kTileRows, kRun>(to, d + first, w.d_ld, tile.rows, left);
    if constexpr (forward) {
      copy_matrix<kRun, RANK>(to + Stage::D, b + static_cast<std::int64_t>(first) * w.inner, w.inner, left,
                              w.inner);
    } else {
      copy_matrix<RANK, kRun>(to + Stage::D, b + first, w.columns, w.inner, left);
    }
  };
  copy_matrix<kTileRows, RANK>(rows, w.a + tile.first * w.a_ld, w.a_ld, tile.rows, w.inner);
#pragma unroll
  for (int run = 0; run < stages - 1; ++run) {
    if (run < runs) copy(run);
    end_copies();
  }
  std::uint32_t x[2][steps][4];
  for (int run = 0; run < runs; ++run) {
    wait_for_copies<stages - 2>();
    __syncthreads();
    if (run + stages - 1 < runs) copy(run + stages - 1);
    end_copies();
    if (warp * kWarpRows >= tile.rows) continue;
    if (run == 0) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int k = 0; k < steps; ++k)
          load_a<RANK + kGap>(x[m][k], rows + (warp * kWarpRows + m * 16) * (RANK + kGap) + k * 16);
      }
    }
    Bf16* const outputs = shared + run % stages * Stage::ELEMENTS + warp * kWarpRows * pitch;
    const Bf16* const weight = shared + run % stages * Stage::ELEMENTS + Stage::D;
#pragma unroll
    for (int n = 0; n < kRun; n += 16) {
      float sums[2][2][4] = {};
#pragma unroll
      for (int k = 0; k < steps; ++k) {
        std::uint32_t y[4];
        if constexpr (forward) {
          load_b<RANK + kGap>(y, weight + n * (RANK + kGap) + k * 16);
        } else {
          load_b_transposed<pitch>(y, weight + k * 16 * pitch + n);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(sums[m][0], x[m][k], y[0], y[1]);
          multiply_add(sums[m][1], x[m][k], y[2], y[3]);
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int half = i % 2, column = n + i / 2 * 8 + lane % 4 * 2;
          auto* const to =
              reinterpret_cast<std::uint32_t*>(outputs + (m * 16 + half * 8 + lane / 4) * pitch + column);
          const float(&pair)[4] = sums[m][i / 2];
          *to = rounded_pair(w.factor * pair[2 * half], w.factor * pair[2 * half + 1], w.adds,
                             w.adds ? *to : 0);
        }
      }
    }
    __syncwarp();
    constexpr int lanes = kRun / kCopied;
    const int column = lane % lanes * kCopied, first = (first_run + run) * kRun;
#pragma unroll
    for (int r = 0; r < kWarpRows; r += kWarp / lanes) {
      const int row = r + lane / lanes;
      if (warp * kWarpRows + row >= tile.rows || first + column >= w.columns) continue;
      *reinterpret_cast<uint4*>(d + (warp * kWarpRows + row) * w.d_ld + first + column) =
          *reinterpret_cast<const uint4*>(outputs + row * pitch + column);
    }
    __syncwarp();
  }
}

// --- sums ----------------------------------------------------------------------------------------------

template <int RANK>
struct SumStage {
  static constexpr int WIDE = kSumRows * (kSumColumns + kGap);
  static constexpr int ELEMENTS = WIDE + kSumRows * (RANK + kGap);
};

template <typename T>
__device__ void store_sum(T* to, float sum, bool adds) {
  *to = from_float<T>(adds ? to_float(*to) + sum : sum);
}

/// A block computes the sums of some columns of `a`, the wide operand, with all columns of `b`, the narrow
/// operand, over the rows of an expert. RANK_DOWN: the rank is the number of rows of the expert's matrix.
template <bool RANK_DOWN, int RANK, typename T>
__global__ void __launch_bounds__(kThreads) low_rank_sums_kernel(const LowRankWork w) {
  using Stage = SumStage<RANK>;
  constexpr int stages = kStages<RANK>, pitch = kSumColumns + kGap, warp_columns = kSumColumns / kWarps;
  const int parts = (w.columns + kSumColumns - 1) / kSumColumns;
  const int expert = static_cast<int>(blockIdx.x) / parts;
  const int first_column = static_cast<int>(blockIdx.x) % parts * kSumColumns;
  const int begin = w.begins[expert], rows = w.begins[expert + 1] - begin;
  if (rows == 0 && w.adds) return;
  Bf16* const shared = reinterpret_cast<Bf16*>(dynamic_shared());
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int runs = (rows + kSumRows - 1) / kSumRows;
  const auto copy = [&](int run) {
    Bf16* const to = shared + run % stages * Stage::ELEMENTS;
    const std::int64_t first = begin + run * kSumRows;
    const int left = rows - run * kSumRows;
    copy_matrix<kSumRows, kSumColumns>(to, w.a + first * w.a_ld + first_column, w.a_ld, left,
                                       w.columns - first_column);
    copy_matrix<kSumRows, RANK>(to + Stage::WIDE, w.b + first * w.b_ld, w.b_ld, left, w.inner);
  };
  float sums[RANK / 16][warp_columns / 8][4] = {};
#pragma unroll
  for (int run = 0; run < stages - 1; ++run) {
    if (run < runs) copy(run);
    end_copies();
  }
  for (int run = 0; run < runs; ++run) {
    wait_for_copies<stages - 2>();
    __syncthreads();
    if (run + stages - 1 < runs) copy(run + stages - 1);
    end_copies();
    const Bf16* const wide = shared + run % stages * Stage::ELEMENTS + warp * warp_columns;
    const Bf16* const narrow_rows = shared + run % stages * Stage::ELEMENTS + Stage::WIDE;
#pragma unroll
    for (int k = 0; k < kSumRows; k += 16) {
      std::uint32_t y[warp_columns / 16][4];
#pragma unroll
      for (int n = 0; n < warp_columns / 16; ++n) load_b_transposed<pitch>(y[n], wide + k * pitch + n * 16);
#pragma unroll
      for (int m = 0; m < RANK / 16; ++m) {
        std::uint32_t x[4];
        load_a_transposed<RANK + kGap>(x, narrow_rows + k * (RANK + kGap) + m * 16);
#pragma unroll
        for (int n = 0; n < warp_columns / 16; ++n) {
          multiply_add(sums[m][2 * n], x, y[n][0], y[n][1]);
          multiply_add(sums[m][2 * n + 1], x, y[n][2], y[n][3]);
        }
      }
    }
  }
  T* const d = static_cast<T*>(w.d) + expert * w.step;
#pragma unroll
  for (int m = 0; m < RANK / 16; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int rank = m * 16 + half * 8 + lane / 4;
      if (rank >= w.inner) continue;
#pragma unroll
      for (int n = 0; n < warp_columns / 8; ++n) {
        const int column = first_column + warp * warp_columns + n * 8 + lane % 4 * 2;
        if (column >= w.columns) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          T* const to = RANK_DOWN ? d + rank * w.d_ld + column + i : d + (column + i) * w.d_ld + rank;
          store_sum(to, w.factor * sums[m][n][2 * half + i], w.adds);
        }
      }
    }
  }
}

// --- launches ------------------------------------------------------------------------------------------

template <typename Kernel>
void launch(Stream& stream, Kernel kernel, std::int64_t blocks, int elements, const LowRankWork& work) {
  const auto bytes = static_cast<std::size_t>(elements) * sizeof(Bf16);
  octet::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, octet::cuda::native(stream)>>>(work);
  octet::cuda::check_launch("expert_low_rank");
}

template <GemmKind P, int RANK>
void multiply_rows(Stream& stream, const ExpertLowRankArgs& args, bool narrow_d) {
  const LowRankWork work{.a = static_cast<const Bf16*>(args.a.data),
                         .a_ld = args.a.ld,
                         .b = static_cast<const Bf16*>(args.b.data),
                         .b_ld = args.b.ld,
                         .step = args.step,
                         .begins = args.begins,
                         .count = static_cast<int>(args.count),
                         .inner = static_cast<int>(args.a.cols),
                         .columns = static_cast<int>(args.d.cols),
                         .d = args.d.data,
                         .d_ld = args.d.ld,
                         .factor = args.factor,
                         .adds = args.accumulate};
  const std::int64_t tiles = std::min(args.d.rows, args.count + args.d.rows / kTileRows);
  if (narrow_d) {
    return launch(stream, low_rank_narrow_kernel<P, RANK>, tiles,
                  kStages<RANK> * NarrowStage<P, RANK>::ELEMENTS, work);
  }
  using Stage = WideStage<P, RANK>;
  launch(stream, low_rank_wide_kernel<P, RANK>, tiles * ceil_div(ceil_div(args.d.cols, kRun), kPartRuns),
         Stage::A + kStages<RANK> * Stage::ELEMENTS, work);
}

template <int RANK, typename T>
void sum_rows(Stream& stream, const ExpertLowRankArgs& args, bool rank_down) {
  const ConstMatrix &wide = rank_down ? args.b : args.a, &ranks = rank_down ? args.a : args.b;
  const LowRankWork work{.a = static_cast<const Bf16*>(wide.data),
                         .a_ld = wide.ld,
                         .b = static_cast<const Bf16*>(ranks.data),
                         .b_ld = ranks.ld,
                         .step = args.step,
                         .begins = args.begins,
                         .count = static_cast<int>(args.count),
                         .inner = static_cast<int>(ranks.cols),
                         .columns = static_cast<int>(wide.cols),
                         .d = args.d.data,
                         .d_ld = args.d.ld,
                         .factor = args.factor,
                         .adds = args.accumulate};
  const std::int64_t blocks = args.count * ceil_div(wide.cols, kSumColumns);
  constexpr int elements = kStages<RANK> * SumStage<RANK>::ELEMENTS;
  rank_down ? launch(stream, low_rank_sums_kernel<true, RANK, T>, blocks, elements, work)
            : launch(stream, low_rank_sums_kernel<false, RANK, T>, blocks, elements, work);
}

/// Launches the kernel for ranks of at most RANK. The other columns of a rank are zeros.
template <int RANK>
void multiply(Stream& stream, const ExpertLowRankArgs& args) {
  const bool narrow_d = args.d.cols <= args.a.cols;
  switch (args.gemm_kind) {
    case GemmKind::forward:
      return multiply_rows<GemmKind::forward, RANK>(stream, args, narrow_d);
    case GemmKind::dgrad:
      return multiply_rows<GemmKind::dgrad, RANK>(stream, args, narrow_d);
    case GemmKind::wgrad: {
      const bool rank_down = args.d.rows <= args.d.cols;
      return args.d.dtype == DType::f32 ? sum_rows<RANK, float>(stream, args, rank_down)
                                        : sum_rows<RANK, Bf16>(stream, args, rank_down);
    }
  }
}

}  // namespace

bool has_expert_low_rank() {
  return octet::cuda::code_here() >= 80;
}

void expert_low_rank(Stream& stream, const ExpertLowRankArgs& args) {
  const ConstMatrix weight = args.gemm_kind == GemmKind::wgrad ? ConstMatrix(args.d) : args.b;
  const std::int64_t rank = std::min(weight.rows, weight.cols);
  if (rank == 0) return;
  if (rank <= 16) return multiply<16>(stream, args);
  if (rank <= 32) return multiply<32>(stream, args);
  if (rank <= 64) return multiply<64>(stream, args);
  multiply<kMostLowRank>(stream, args);
}

}  // namespace octet::ops::cuda
