// The GEMMs of experts with few tokens each (expert_gemm.h). Each block processes tiles of 16 outputs, over
// all experts with rows, without a pause. It loads the start of the next tile while it multiplies the end of
// the current tile. The tile order follows from the first rows of the experts, which each block reads itself.
#include "cuda/experts/grouped_gemm.cuh"

#include <algorithm>

#include "cuda/early_launch.cuh"
#include "cuda/experts/grouped_tiles.h"
#include "cuda/mma.cuh"
#include "cuda/streamed_reads.cuh"
#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

bool has_grouped_gemm(const GroupedGemmArgs& args);
void grouped_gemm(Stream& stream, const GroupedGemmArgs& args);

namespace {

constexpr int kTile = 16;      ///< outputs of a block at a time: the rows of a tensor-core step
constexpr int kColumns = 8;    ///< columns of the same step: rows of one expert
constexpr int kRunBytes = 64;  ///< bytes of a row that a warp loads at a time: 16 for each of four lanes
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kStride = kWarps * kRunBytes;
constexpr int kRuns = 2;  ///< runs of both of its rows that a lane prefetches
/// Maximum average number of rows per expert. With more rows, the weights are no longer most of the traffic.
constexpr std::int64_t kMostRowsOfExpert = 32;

/// Returns the output index in the expert for row `row` of a tile. If gated, the second half of a tile is
/// from `up`.
template <bool GATED>
__device__ int output_of(const Grouped& a, int tile, int row) {
  if (!GATED) return tile * kTile + row;
  return tile * (kTile / 2) + row % (kTile / 2) + (row < kTile / 2 ? 0 : a.outputs / 2);
}

/// The sums of a tile by the warps of a block. A pitch of 17 avoids bank conflicts of the four lanes of a
/// row.
template <int ROWS>
using Sums = float[kWarps][ROWS][kTile + 1];

/// The outputs of a thread in a tile, which are all of one row of the tile. Their other inputs are loaded
/// before the tile is multiplied.
template <bool FP8, bool GATED, int ROWS>
class Outputs {
 public:
  __device__ Outputs(const Grouped& a, const Item& item) {
    if constexpr (FP8) {
      weight_scale_ = a.weight_scales[static_cast<std::int64_t>(item.expert) * a.outputs +
                                      output_of<GATED>(a, item.tile, row())];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int r = item.first_row + min(first() + k * kStep, item.rows - 1);
        x_scales_[k] = a.x_scales[a.source == nullptr ? r : a.source[r]];
      }
    }
  }
  __device__ void write(const Grouped& a, const Item& item, const Sums<ROWS>& sums) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) write(a, item, sums, first() + k * kStep, k);
  }

 private:
  static constexpr int kStep = kThreads / kTile;  ///< distance between two of its rows
  static constexpr int kCount = (ROWS + kStep - 1) / kStep;

  __device__ static int row() {
    return static_cast<int>(threadIdx.x) % kTile;
  }
  __device__ static int first() {
    return static_cast<int>(threadIdx.x) / kTile;
  }
  __device__ void write(const Grouped& a, const Item& item, const Sums<ROWS>& sums, int r, int k) const {
    if (r >= ROWS) return;  // uniform over warps
    float x = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += sums[w][r][row()];
    if constexpr (FP8) x *= x_scales_[k] * weight_scale_;
    const __nv_bfloat16 rounded = from_float<__nv_bfloat16>(x);
    __nv_bfloat16* const to = a.d + (item.first_row + r) * a.d_ld;
    if constexpr (!GATED) {
      if (r < item.rows) to[output_of<false>(a, item.tile, row())] = rounded;
    } else {
      const float mine = to_float(rounded), up = __shfl_xor_sync(0xFFFFFFFFu, mine, kTile / 2);
      if (r >= item.rows || row() >= kTile / 2) return;
      to[output_of<true>(a, item.tile, row())] = from_float<__nv_bfloat16>(gated_value(a.gelu, mine, up));
    }
  }

  float weight_scale_ = 0, x_scales_[kCount] = {};
};

/// A block multiplies tiles of the weights of experts with rows. A lane reads 16 bytes of a row at a time,
/// which serve two tensor-core steps. The order of values in the inner dimension differs from the
/// instruction's order, but is the same for weight and rows.
template <bool FP8, int STEPS, bool GATED, int BLOCKS>
__global__ void __launch_bounds__(kThreads, BLOCKS) grouped_gemm_kernel(const Grouped a) {
  constexpr int ROWS = STEPS * kColumns;
  __shared__ Groups<ROWS> groups;
  __shared__ Sums<ROWS> sums;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, column = warp * kRunBytes + lane % 4 * 16;
  // Runs of this warp in a row, and the loop count, which is equal for all warps. Missing runs are zero.
  const int runs = (a.inner_bytes / kRunBytes - warp + kWarps - 1) / kWarps;
  const int counted = (a.inner_bytes + kStride * kRuns - 1) / (kStride * kRuns) * kRuns;
  const int tiles = a.outputs / kTile;
  const std::uint8_t *weight[2], *next[2];
  const auto find = [&](const Item& item, const std::uint8_t*(&at)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t output = static_cast<std::int64_t>(item.expert) * a.outputs +
                                  output_of<GATED>(a, item.tile, half * kTile / 2 + row);
      at[half] = a.weight + output * a.inner_bytes + column;
    }
  };
  uint4 ahead[kRuns][2];
  const auto ask = [&](uint4(&to)[2], const std::uint8_t* const(&from)[2], int run) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      to[half] = run < runs ? read_once(from[half] + run * kStride) : make_uint4(0, 0, 0, 0);
  };
  wait_for_previous();
  let_next_begin();
  groups.find(a);
  __syncthreads();
  const int items = groups.count(a) * tiles;
  int i = static_cast<int>(blockIdx.x);
  if (i >= items) return;
  Item item = groups.item(a, tiles, i);
  find(item, weight);
#pragma unroll
  for (int r = 0; r < kRuns; ++r) ask(ahead[r], weight, r);
  for (; i < items; i += static_cast<int>(gridDim.x)) {
    const bool more = i + static_cast<int>(gridDim.x) < items;
    const Item following = more ? groups.item(a, tiles, i + static_cast<int>(gridDim.x)) : item;
    find(following, next);
    const Outputs<FP8, GATED, ROWS> outputs(a, item);
    const std::uint8_t* x_of[STEPS];
#pragma unroll
    for (int t = 0; t < STEPS; ++t) {
      // Out-of-range rows re-read the last row; their results are discarded.
      const int r = item.first_row + min(t * kColumns + row, item.rows - 1);
      x_of[t] =
          a.x + static_cast<std::int64_t>(a.source == nullptr ? r : a.source[r]) * a.inner_bytes + column;
    }
    float sum[STEPS][4] = {};
    for (int first = 0; first < counted; first += kRuns) {
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        const int run = first + k;
        uint4 x[STEPS];
#pragma unroll
        for (int t = 0; t < STEPS; ++t)
          x[t] = run < runs ? read_often(x_of[t] + run * kStride) : make_uint4(0, 0, 0, 0);
        const uint4 low = ahead[k][0], high = ahead[k][1];
        const std::uint32_t step_0[4] = {low.x, high.x, low.y, high.y};
        const std::uint32_t step_1[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int t = 0; t < STEPS; ++t) {
          if constexpr (FP8) {
            multiply_add_e4m3(sum[t], step_0, x[t].x, x[t].y);
            multiply_add_e4m3(sum[t], step_1, x[t].z, x[t].w);
          } else {
            multiply_add(sum[t], step_0, x[t].x, x[t].y);
            multiply_add(sum[t], step_1, x[t].z, x[t].w);
          }
        }
        if (run + kRuns < counted) {
          ask(ahead[k], weight, run + kRuns);
        } else if (more) {
          ask(ahead[k], next, run + kRuns - counted);
        }
      }
    }
    __syncthreads();  // the sums of the previous tile have been read
#pragma unroll
    for (int t = 0; t < STEPS; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[warp][t * kColumns + lane % 4 * 2 + e % 2][row + e / 2 * 8] = sum[t][e];
    }
    __syncthreads();
    outputs.write(a, item, sums);
    item = following;
    weight[0] = next[0];
    weight[1] = next[1];
  }
}

template <bool FP8, int STEPS, int BLOCKS>
void launch(Stream& stream, bool gated, const Grouped& args, std::int64_t most_groups) {
  const std::int64_t places = octet::cuda::properties(stream.device()).multiprocessors * BLOCKS;
  const auto blocks = static_cast<unsigned>(std::min(places, most_groups * (args.outputs / kTile)));
  launch_early(
      gated ? grouped_gemm_kernel<FP8, STEPS, true, BLOCKS> : grouped_gemm_kernel<FP8, STEPS, false, BLOCKS>,
      dim3(blocks), kThreads, 0, octet::cuda::native(stream), "grouped_gemm", args);
}

template <bool FP8>
void launch(Stream& stream, const GroupedGemmArgs& a) {
  const Grouped args = grouped_of(a);
  const std::int64_t rows = a.d.rows, most_groups = std::min(rows, a.count + rows / kColumns);
  if (rows <= 4 * a.count) {
    launch<FP8, 1, 4>(stream, a.gated, args, most_groups);
  } else if (rows <= 12 * a.count) {
    launch<FP8, 2, 3>(stream, a.gated, args, most_groups);
  } else {
    launch<FP8, 4, 2>(stream, a.gated, args, most_groups);
  }
}

bool has_few_rows(const GroupedGemmArgs& a) {
  return a.d.rows <= kMostRowsOfExpert * a.count;
}

}  // namespace

Grouped grouped_of(const GroupedGemmArgs& a) {
  return {.weight = static_cast<const std::uint8_t*>(a.weight.data),
          .weight_scales = a.weight.scale_inv,
          .x = static_cast<const std::uint8_t*>(a.x.data),
          .x_scales = a.x.scale_inv,
          .source = a.source,
          .begins = a.begins,
          .count = static_cast<int>(a.count),
          .d = static_cast<__nv_bfloat16*>(a.d.data),
          .d_ld = a.d.ld,
          .inner_bytes = static_cast<int>(a.weight.cols * static_cast<std::int64_t>(size_of(a.weight.dtype))),
          .outputs = static_cast<int>(a.weight.rows / a.count),
          .gelu = a.activation == Activation::gelu_tanh};
}

bool has_grouped_gemm(const GroupedGemmArgs& a) {
  const std::int64_t outputs = a.weight.rows / a.count;
  const std::int64_t row_bytes = a.weight.cols * static_cast<std::int64_t>(size_of(a.weight.dtype));
  const auto on_boundary = [](const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
  };
  return a.count <= kMostExperts && outputs % kTile == 0 && row_bytes % kRunBytes == 0 &&
         outputs < (std::int64_t{1} << 30) && row_bytes < (std::int64_t{1} << 30) &&
         on_boundary(a.weight.data) && on_boundary(a.x.data) &&
         octet::cuda::code_here() >= (a.weight.dtype == DType::e4m3 ? 89 : 80) &&
         (has_few_rows(a) || (a.source == nullptr && has_grouped_tiles(a)));
}

void grouped_gemm(Stream& stream, const GroupedGemmArgs& a) {
  check(has_grouped_gemm(a), "grouped_gemm: has_grouped_gemm() was asked");
  if (a.source == nullptr && has_grouped_tiles(a)) return grouped_tiles(stream, a);
  a.weight.dtype == DType::e4m3 ? launch<true>(stream, a) : launch<false>(stream, a);
}

}  // namespace octet::ops::cuda
