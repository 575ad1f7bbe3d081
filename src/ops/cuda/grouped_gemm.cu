// The products of experts with few tokens each (grouped_gemm.h). Each block goes over tiles of 16 outputs of
// all experts that have rows, without a pause: it asks for the first bytes of the next tile while it
// multiplies the last ones of this one. Which tile that is follows from the experts' first rows, which every
// block reads for itself.
#include "octet/ops/grouped_gemm.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/activations.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/mma.cuh"
#include "cuda/rows.cuh"
#include "cuda/streamed_reads.cuh"
#include "octet/base/error.h"
#include "octet/device/cuda.h"
#include "octet/ops/routing.h"

namespace octet::ops::cuda {

bool has_grouped_gemm(const GroupedGemmArgs& args);
void grouped_gemm(Stream& stream, const GroupedGemmArgs& args);

namespace {

constexpr int kTile = 16;      ///< outputs that a block makes at a time: the rows of a tensor core's step
constexpr int kColumns = 8;    ///< of the same step: rows of one expert
constexpr int kRunBytes = 64;  ///< of a row that a warp takes at a time: 16 for each of four lanes
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kStride = kWarps * kRunBytes;
constexpr int kRuns = 2;  ///< of both its rows that a lane has asked for ahead
/// Rows that an expert has on average at most: beyond, the weights are no longer most of what is read.
constexpr std::int64_t kMostRowsOfExpert = 32;

struct Grouped {
  const std::uint8_t* weight;
  const std::uint8_t* x;
  std::int64_t x_pitch;  ///< bytes from a row to the next
  const std::int32_t* source;
  const std::int32_t* begins;
  int count;
  __nv_bfloat16* d;
  std::int64_t d_ld;
  int inner_bytes;  ///< of a row of the weight
  int outputs;      ///< of an expert
  bool gelu;
};

/// What a block makes at a time: 16 outputs of some rows of an expert.
struct Item {
  int expert, first_row, rows, tile;
};

/// The experts' rows in groups of `ROWS`, or fewer: of each expert the number of its first group.
template <int ROWS>
class Groups {
 public:
  /// All threads of the block; a barrier behind it.
  __device__ void find(const Grouped& a) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= 32) return;
    int before = 0;
    for (int first = 0; first < a.count; first += 32) {
      const int e = first + thread;
      int groups = e < a.count ? (a.begins[e + 1] - a.begins[e] + ROWS - 1) / ROWS : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int lower = __shfl_up_sync(0xFFFFFFFFu, groups, step);
        if (thread >= step) groups += lower;
      }
      if (e < a.count) ends_[e] = before + groups;
      before += __shfl_sync(0xFFFFFFFFu, groups, 31);
    }
  }
  __device__ int count(const Grouped& a) const {
    return ends_[a.count - 1];
  }
  __device__ Item item(const Grouped& a, int tiles, int i) const {
    const int group = i / tiles;
    int low = 0, high = a.count - 1;  // the first expert whose groups end behind it
    while (low < high) {
      const int middle = (low + high) / 2;
      ends_[middle] > group ? high = middle : low = middle + 1;
    }
    const int before = low > 0 ? ends_[low - 1] : 0;
    const int first = a.begins[low] + (group - before) * ROWS;
    return {low, first, min(ROWS, a.begins[low + 1] - first), i % tiles};
  }

 private:
  int ends_[kMostExperts];
};

/// Row `row` of a tile, inside its expert: of gated ones the second half of a tile are values of `up`.
template <bool GATED>
__device__ int output_of(const Grouped& a, int tile, int row) {
  if (!GATED) return tile * kTile + row;
  return tile * (kTile / 2) + row % (kTile / 2) + (row < kTile / 2 ? 0 : a.outputs / 2);
}

/// What the warps of a block have summed of a tile. A pitch of 17 keeps the four lanes of a row apart.
template <int ROWS>
using Sums = float[kWarps][ROWS][kTile + 1];

template <int ROWS, bool GATED>
__device__ void write_outputs(const Grouped& a, const Item& item, const Sums<ROWS>& sums) {
  for (int i = static_cast<int>(threadIdx.x); i < ROWS * kTile; i += kThreads) {
    const int r = i / kTile, row = i % kTile;
    float x = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += sums[w][r][row];
    const __nv_bfloat16 rounded = from_float<__nv_bfloat16>(x);
    __nv_bfloat16* const to = a.d + (item.first_row + r) * a.d_ld;
    if constexpr (!GATED) {
      if (r < item.rows) to[output_of<false>(a, item.tile, row)] = rounded;
    } else {
      const float mine = to_float(rounded), up = __shfl_xor_sync(0xFFFFFFFFu, mine, kTile / 2);
      if (r >= item.rows || row >= kTile / 2) continue;
      float value, slope;
      if (a.gelu) {
        GeluTanh::both(mine, value, slope);
      } else {
        Silu::both(mine, value, slope);
      }
      to[output_of<true>(a, item.tile, row)] = from_float<__nv_bfloat16>(value * up);
    }
  }
}

/// A block multiplies tiles of the weights of those experts that have rows. A lane reads 16 bytes of a row at
/// a time, which are the values of two steps of a tensor core: their order within the inner dimension is
/// another than the instruction's, the same for weight and rows.
template <int STEPS, bool GATED, int BLOCKS>
__global__ void __launch_bounds__(kThreads, BLOCKS) grouped_gemm_kernel(const Grouped a) {
  constexpr int ROWS = STEPS * kColumns;
  __shared__ Groups<ROWS> groups;
  __shared__ Sums<ROWS> sums;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, column = warp * kRunBytes + lane % 4 * 16;
  // Runs of this warp in a row, and of every warp as they are counted: those that there are none of are zero.
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
    const std::uint8_t* x_of[STEPS];
#pragma unroll
    for (int t = 0; t < STEPS; ++t) {
      // Rows behind the last one repeat it; nobody writes what comes of them.
      const int r = item.first_row + min(t * kColumns + row, item.rows - 1);
      x_of[t] = a.x + (a.source == nullptr ? r : a.source[r]) * a.x_pitch + column;
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
          multiply_add(sum[t], step_0, x[t].x, x[t].y);
          multiply_add(sum[t], step_1, x[t].z, x[t].w);
        }
        if (run + kRuns < counted) {
          ask(ahead[k], weight, run + kRuns);
        } else if (more) {
          ask(ahead[k], next, run + kRuns - counted);
        }
      }
    }
    __syncthreads();  // the sums of the tile before have been read
#pragma unroll
    for (int t = 0; t < STEPS; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[warp][t * kColumns + lane % 4 * 2 + e % 2][row + e / 2 * 8] = sum[t][e];
    }
    __syncthreads();
    write_outputs<ROWS, GATED>(a, item, sums);
    item = following;
    weight[0] = next[0];
    weight[1] = next[1];
  }
}

template <int STEPS, int BLOCKS>
void launch(Stream& stream, bool gated, const Grouped& args, std::int64_t most_groups) {
  const std::int64_t places = octet::cuda::properties(stream.device()).multiprocessors * BLOCKS;
  const auto blocks = static_cast<unsigned>(std::min(places, most_groups * (args.outputs / kTile)));
  launch_early(gated ? grouped_gemm_kernel<STEPS, true, BLOCKS> : grouped_gemm_kernel<STEPS, false, BLOCKS>,
               dim3(blocks), kThreads, 0, octet::cuda::native(stream), "grouped_gemm", args);
}

}  // namespace

bool has_grouped_gemm(const GroupedGemmArgs& a) {
  const std::int64_t outputs = a.weight.rows / a.count, row_bytes = a.weight.cols * 2;
  const auto on_boundary = [](const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
  };
  return a.count <= kMostExperts && outputs % kTile == 0 && row_bytes % kRunBytes == 0 &&
         outputs < (std::int64_t{1} << 30) && row_bytes < (std::int64_t{1} << 30) &&
         on_boundary(a.weight.data) && on_boundary(a.x.data) && a.x.ld % 8 == 0 &&
         a.d.rows <= kMostRowsOfExpert * a.count && octet::cuda::code_here() >= 80;
}

void grouped_gemm(Stream& stream, const GroupedGemmArgs& a) {
  check(has_grouped_gemm(a), "grouped_gemm: has_grouped_gemm() was asked");
  const Grouped args{.weight = static_cast<const std::uint8_t*>(a.weight.data),
                     .x = static_cast<const std::uint8_t*>(a.x.data),
                     .x_pitch = a.x.ld * 2,
                     .source = a.source,
                     .begins = a.begins,
                     .count = static_cast<int>(a.count),
                     .d = static_cast<__nv_bfloat16*>(a.d.data),
                     .d_ld = a.d.ld,
                     .inner_bytes = static_cast<int>(a.weight.cols * 2),
                     .outputs = static_cast<int>(a.weight.rows / a.count),
                     .gelu = a.activation == Activation::gelu_tanh};
  const std::int64_t rows = a.d.rows, most_groups = std::min(rows, a.count + rows / kColumns);
  if (rows <= 4 * a.count) {
    launch<1, 4>(stream, a.gated, args, most_groups);
  } else if (rows <= 12 * a.count) {
    launch<2, 3>(stream, a.gated, args, most_groups);
  } else {
    launch<4, 2>(stream, a.gated, args, most_groups);
  }
}

}  // namespace octet::ops::cuda
