// The GEMMs of experts with more rows (expert_gemm.h). A block processes tiles of 128 outputs by 64 or 128
// rows of an expert. One thread loads runs of the inner dimension of both operands, as many ahead as the ring
// holds. It also loads the next tile while the current tile is written. Each warpgroup multiplies 64 rows.
#include "cuda/experts/grouped_tiles.h"

#include <algorithm>

#include "cuda/bulk_copies.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/experts/grouped_gemm.cuh"
#include "cuda/tensor_map.h"
#include "cuda/warpgroup.cuh"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {
namespace {

constexpr int kRunBytes = 128;      ///< bytes of an operand row in a tile of the copy engine
constexpr int kOutputs = 128;       ///< outputs of a tile; if gated, 64 of gate, then 64 of up
constexpr int kOutputsAtOnce = 64;  ///< outputs per copy of the copy engine
constexpr int kRowsAtOnce = 32;
constexpr int kGroupRows = 64;  ///< rows of a warpgroup
constexpr int kGroupThreads = 128;
constexpr int kSteps = 4;            ///< product instructions per kRunBytes
constexpr int kSums = kOutputs / 2;  ///< sums of a thread
/// Average numbers of rows per expert, measured on an H200. From the first number on, tiles are faster than
/// the kernel for few rows. From the second on, tiles of two warpgroups are faster.
constexpr std::int64_t kLeastRowsOfExpert = 1, kLeastRowsOfTwo = 64;

/// FP8: operands are in E4M3, else in bf16. GATED: gate and up. GROUPS: warpgroups of 64 rows each.
template <bool FP8_, bool GATED_, int GROUPS_>
struct Cut {
  static constexpr bool FP8 = FP8_;
  static constexpr bool GATED = GATED_;
  static constexpr int GROUPS = GROUPS_;
  static constexpr int ROWS = GROUPS * kGroupRows;
  static constexpr int THREADS = GROUPS * kGroupThreads + kWarp;
  static constexpr int WEIGHT_BYTES = kOutputs * kRunBytes;
  static constexpr int STAGE_BYTES = WEIGHT_BYTES + ROWS * kRunBytes;
  /// E4M3 needs two sets of sums, and so twice the registers.
  static constexpr int BLOCKS = FP8 && GROUPS == 2 ? 1 : 2;  ///< per multiprocessor
  static constexpr int STAGES = (GROUPS == 2 ? 6 : 8) / BLOCKS;
  static constexpr std::size_t SHARED_BYTES = std::size_t{STAGES} * STAGE_BYTES + 1024;
  /// Outputs of an expert per tile. If gated, the outputs of gate only.
  static constexpr int STRIDE = GATED ? kOutputs / 2 : kOutputs;
};

template <typename C>
struct Ring {
  std::uint8_t* data;
  Barrier* filled;   ///< [STAGES]
  Barrier* emptied;  ///< [STAGES]
  int stage = 0, phase = 0;
  __device__ std::uint8_t* weight() const { return data + stage * C::STAGE_BYTES; }
  __device__ std::uint8_t* rows() const { return weight() + C::WEIGHT_BYTES; }
  __device__ void advance() {
    if (++stage < C::STAGES) return;
    stage = 0;
    phase ^= 1;
  }
};

template <typename C>
__device__ int tiles_of(const Grouped& a) {
  return ((C::GATED ? a.outputs / 2 : a.outputs) + C::STRIDE - 1) / C::STRIDE;
}
__device__ inline int runs_of(const Grouped& a) {
  return (a.inner_bytes + kRunBytes - 1) / kRunBytes;
}

/// Calls act(item) for the items of this block, in order.
template <typename C, typename Act>
__device__ void each_item(const Grouped& a, const Groups<C::ROWS>& groups, Act&& act) {
  const int tiles = tiles_of<C>(a), items = groups.count(a) * tiles;
  for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x))
    act(groups.item(a, tiles, i));
}

/// Loads all runs of the block. Called by one thread.
template <typename C>
__device__ void fill(const Grouped& a, const Groups<C::ROWS>& groups, const CUtensorMap& weight,
                     const CUtensorMap& rows, Ring<C> ring) {
  each_item<C>(a, groups, [&](const Item& item) {
    const int first = item.expert * a.outputs + item.tile * C::STRIDE;
    const int second = first + (C::GATED ? a.outputs / 2 : kOutputsAtOnce);
    const int pieces = (item.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    for (int run = 0; run < runs_of(a); ++run) {
      wait_for_phase(ring.emptied[ring.stage], ring.phase ^ 1);
      Barrier& filled = ring.filled[ring.stage];
      const int column = run * kRunBytes;
      arrive_for_bytes(filled, C::WEIGHT_BYTES + pieces * kRowsAtOnce * kRunBytes);
      copy_tile(ring.weight(), weight, first, column, filled, Reread::often);
      copy_tile(ring.weight() + C::WEIGHT_BYTES / 2, weight, second, column, filled, Reread::often);
      for (int piece = 0; piece < pieces; ++piece) {
        const int at = piece * kRowsAtOnce;
        copy_tile(ring.rows() + at * kRunBytes, rows, item.first_row + at, column, filled, Reread::often);
      }
      ring.advance();
    }
  });
}

/// Marks the stage as free. Done by one thread of each warp, because warps progress independently.
template <typename C>
__device__ void leave(const Ring<C>& ring, int stage) {
  if (threadIdx.x % kWarp == 0) arrive(ring.emptied[stage]);
}

/// Starts the products of a run with the rows of the warpgroup. `adds`: add to the previous sums, else start
/// from zero.
template <typename C>
__device__ void begin_run(const Ring<C>& ring, float (&sums)[kSums], bool adds) {
  const std::uint8_t* const rows =
      ring.rows() + static_cast<int>(threadIdx.x) / kGroupThreads * kGroupRows * kRunBytes;
  begin_multiplies();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int at = step * (kRunBytes / kSteps);
    warpgroup_multiply<C::FP8, kOutputs>(sums, warpgroup_operand(rows + at),
                                         warpgroup_operand(ring.weight() + at), adds || step > 0);
  }
  end_multiplies();
}

/// Sums all runs of an item. In E4M3, tensor cores keep about 14 bits of a run; the sum over runs is in fp32
/// with 24 bits.
template <typename C>
__device__ void sum_runs(Ring<C>& ring, int runs, float (&sums)[kSums]) {
  if constexpr (C::FP8) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
    for (int run = 0; run < runs; ++run) {
      float more[kSums];
      wait_for_phase(ring.filled[ring.stage], ring.phase);
      begin_run<C>(ring, more, false);
      wait_for_multiplies<0>();
      take_sums(more);
      leave<C>(ring, ring.stage);
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += more[i];
      ring.advance();
    }
  } else {
    int before = 0;
    for (int run = 0; run < runs; ++run) {
      wait_for_phase(ring.filled[ring.stage], ring.phase);
      begin_run<C>(ring, sums, run > 0);
      if (run > 0) {
        wait_for_multiplies<1>();
        leave<C>(ring, before);
      }
      before = ring.stage;
      ring.advance();
    }
    wait_for_multiplies<0>();
    take_sums(sums);
    leave<C>(ring, before);
  }
}

/// Releases the runs of an item, for a warpgroup without rows.
template <typename C>
__device__ void pass_runs(Ring<C>& ring, int runs) {
  for (int run = 0; run < runs; ++run) {
    wait_for_phase(ring.filled[ring.stage], ring.phase);
    leave<C>(ring, ring.stage);
    ring.advance();
  }
}

/// Two neighbouring outputs of a row, rounded.
struct Two {
  float first, second;
};
template <bool FP8>
__device__ Two rounded(const float* sums, float x_scale, const float* weight_scales) {
  float first = sums[0], second = sums[1];
  if constexpr (FP8) {
    first *= x_scale * weight_scales[0];
    second *= x_scale * weight_scales[1];
  }
  return {to_float(from_float<__nv_bfloat16>(first)), to_float(from_float<__nv_bfloat16>(second))};
}

/// Writes the outputs. A thread has two neighbours of each eight outputs, for two rows
/// (warpgroup_multiply()).
template <typename C>
__device__ void write_outputs(const Grouped& a, const Item& item, const float (&sums)[kSums]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = lane % 4 * 2, first_output = item.tile * C::STRIDE + column;
  const int outputs = C::GATED ? a.outputs / 2 : a.outputs;
  const float* const scales =
      C::FP8 ? a.weight_scales + static_cast<std::int64_t>(item.expert) * a.outputs : nullptr;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = warp * 16 + lane / 4 + 8 * half;
    if (r >= item.rows) continue;
    const std::int64_t row = item.first_row + r;
    const float x_scale = C::FP8 ? a.x_scales[row] : 1.0f;
    __nv_bfloat16* const to = a.d + row * a.d_ld;
#pragma unroll
    for (int i = 0; i < C::STRIDE / 8; ++i) {
      const int output = first_output + 8 * i;
      if (output >= outputs) continue;
      Two made = rounded<C::FP8>(sums + 4 * i + 2 * half, x_scale, scales + output);
      if constexpr (C::GATED) {
        const Two up =
            rounded<C::FP8>(sums + kSums / 2 + 4 * i + 2 * half, x_scale, scales + outputs + output);
        made = {gated_value(a.gelu, made.first, up.first), gated_value(a.gelu, made.second, up.second)};
      }
      *reinterpret_cast<std::uint32_t*>(to + output) =
          packed(from_float<__nv_bfloat16>(made.first), from_float<__nv_bfloat16>(made.second));
    }
  }
}

template <typename C>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    grouped_tiles_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap rows,
                         const Grouped a) {
  __shared__ Barrier filled[C::STAGES], emptied[C::STAGES];
  __shared__ Groups<C::ROWS> groups;
  // The swizzle uses address bits, so the ring must be aligned to 1024 bytes.
  std::uint8_t* const shared = dynamic_shared();
  Ring<C> ring{
      .data = shared + (1024 - shared_address(shared) % 1024) % 1024, .filled = filled, .emptied = emptied};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < C::STAGES; ++stage) {
      make_barrier(filled[stage], 1);
      make_barrier(emptied[stage], C::GROUPS * kGroupThreads / kWarp);
    }
    open_barriers();
  }
  wait_for_previous();
  let_next_begin();
  groups.find(a);
  __syncthreads();
  if (threadIdx.x >= C::GROUPS * kGroupThreads) {
    if (threadIdx.x % kWarp == 0) fill<C>(a, groups, weight, rows, ring);
    return;
  }
  const int first_row = static_cast<int>(threadIdx.x) / kGroupThreads * kGroupRows;
  each_item<C>(a, groups, [&](const Item& item) {
    if (item.rows <= first_row) return pass_runs<C>(ring, runs_of(a));
    float sums[kSums];
    sum_runs<C>(ring, runs_of(a), sums);
    write_outputs<C>(a, item, sums);
  });
}

template <typename C>
void launch(Stream& stream, const GroupedGemmArgs& args) {
  const Grouped grouped = grouped_of(args);
  const CUtensorMap weight = tensor_map({.data = args.weight.data,
                                         .rows = args.weight.rows,
                                         .bytes = grouped.inner_bytes,
                                         .tile_rows = kOutputsAtOnce});
  const CUtensorMap rows = tensor_map(
      {.data = args.x.data, .rows = args.d.rows, .bytes = grouped.inner_bytes, .tile_rows = kRowsAtOnce});
  octet::cuda::check(
      cudaFuncSetAttribute(grouped_tiles_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(C::SHARED_BYTES)),
      "cudaFuncSetAttribute");
  const std::int64_t tiles = ceil_div(C::GATED ? grouped.outputs / 2 : grouped.outputs, C::STRIDE);
  const std::int64_t groups = std::min(args.d.rows, args.count + args.d.rows / C::ROWS);
  const std::int64_t places = octet::cuda::properties(stream.device()).multiprocessors * C::BLOCKS;
  launch_early(grouped_tiles_kernel<C>, dim3(static_cast<unsigned>(std::min(places, groups * tiles))),
               C::THREADS, C::SHARED_BYTES, octet::cuda::native(stream), "grouped_gemm", weight, rows,
               grouped);
}

template <bool FP8, bool GATED>
void launch(Stream& stream, const GroupedGemmArgs& args) {
  args.d.rows < kLeastRowsOfTwo* args.count ? launch<Cut<FP8, GATED, 1>>(stream, args)
                                            : launch<Cut<FP8, GATED, 2>>(stream, args);
}

}  // namespace

bool has_grouped_tiles(const GroupedGemmArgs& a) {
  return a.d.rows >= kLeastRowsOfExpert * a.count && a.d.ld % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(a.d.data) % 4 == 0 && a.weight.rows < (std::int64_t{1} << 31) &&
         octet::cuda::code_here() == 90;
}

void grouped_tiles(Stream& stream, const GroupedGemmArgs& args) {
  if (args.weight.dtype == DType::e4m3) {
    args.gated ? launch<true, true>(stream, args) : launch<true, false>(stream, args);
  } else {
    args.gated ? launch<false, true>(stream, args) : launch<false, false>(stream, args);
  }
}

}  // namespace octet::ops::cuda
