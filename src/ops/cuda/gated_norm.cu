#include "octet/ops/gated_norm.h"

#include <algorithm>

#include "cuda/activations.cuh"
#include "cuda/delta_scratch.h"
#include "cuda/early_launch.cuh"
#include "cuda/norm_rows.cuh"
#include "cuda/row_quantize.cuh"
#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kMostDeltaDim <= kWarp * kPack, "a warp holds a head in registers");

/// Sums over groups of LANES lanes, for all lanes of a group.
template <int LANES>
__device__ inline float group_sum(float x) {
#pragma unroll
  for (int offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

/// The part of a thread: LANES lanes have a head, one pack each. Lanes after the last pack are idle.
template <int LANES>
struct HeadLanes {
  static constexpr int units = kThreads / LANES;
  int lane = static_cast<int>(threadIdx.x) % LANES, unit = static_cast<int>(threadIdx.x) / LANES;
  std::int64_t col;  ///< in a head
  bool used;
  __device__ explicit HeadLanes(const DeltaHeads& heads)
      : col(static_cast<std::int64_t>(lane) * kPack), used(col < heads.value_dim) {}
};

/// Loads a pack of a head and its gate. Lanes without a pack get zeros.
template <typename T>
__device__ inline void load_gated(const ConstMatrix& o, const ConstMatrix& projected,
                                  const DeltaColumns& columns, std::int64_t row, std::int64_t head,
                                  std::int64_t col, bool used, bool vector, float (&x)[kPack],
                                  float (&z)[kPack]) {
  if (used) {
    load_pack(row_of<T>(o, row) + head * columns.heads.value_dim + col, x, kPack, vector);
    load_pack(row_of<T>(projected, row) + columns.gate(head) + col, z, kPack, vector);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) x[i] = z[i] = 0.0f;
  }
}

/// Loads a pack in its memory format. `vector`: the pack is aligned to 16 bytes.
template <typename T>
__device__ inline void load_raw(const T* from, bool vector, RawPack<T>& to) {
  if (vector) return to.load(from);
  T* const each = reinterpret_cast<T*>(to.word);
#pragma unroll
  for (int i = 0; i < kPack; ++i) each[i] = from[i];
}

/// 1 / sqrt(mean(x²) + eps) of a head. `share`: 1 / value_dim.
template <int LANES>
__device__ inline float head_rstd(const float (&x)[kPack], float share, float eps) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPack; ++i) squares = __fmaf_rn(x[i], x[i], squares);
  return rsqrtf(group_sum<LANES>(squares) * share + eps);
}
__device__ inline float share_of(const DeltaHeads& heads) {
  return __fdiv_rn(1.0f, static_cast<float>(heads.value_dim));
}

/// x = x * rstd * w * silu(z)
__device__ inline void norm_and_gate(float (&x)[kPack], const float (&z)[kPack], const float (&w)[kPack],
                                     float rstd) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    float value, slope;
    Silu::both(z[i], value, slope);
    x[i] = x[i] * rstd * w[i] * value;
  }
}

/// Groups of heads that a block computes at once.
template <int LANES>
__host__ __device__ inline unsigned head_groups(const DeltaHeads& heads) {
  constexpr int kUnits = HeadLanes<LANES>::units;
  return static_cast<unsigned>((heads.value_heads + kUnits - 1) / kUnits);
}

/// A block has a group of heads, and rows with a distance of gridDim.x / head_groups(). A thread has the same
/// elements of all these rows. Loads of kAhead rows are in flight: when a row is used, the row kAhead turns
/// later is loaded in its place. At four blocks per multiprocessor, these are 64 KiB of a multiprocessor.
template <typename T, int LANES>
__global__ void __launch_bounds__(kThreads, 4) gated_norm_kernel(GatedNormArgs a, Fp8Out fp8, bool vector) {
  constexpr int kAhead = 4 / static_cast<int>(sizeof(T));
  __shared__ unsigned shared[kWarp];
  let_next_begin();
  const DeltaHeads& heads = a.columns.heads;
  const HeadLanes<LANES> own(heads);
  const unsigned groups = head_groups<LANES>(heads);
  const std::int64_t head = std::int64_t{blockIdx.x % groups} * own.units + own.unit;
  const bool used = own.used && head < heads.value_heads;
  const std::int64_t col = head * heads.value_dim + own.col, gate = a.columns.gate(head) + own.col;
  const float share = share_of(heads);
  float w[kPack] = {};
  if (used) load_pack(a.weight + own.col, w, kPack, false);
  wait_for_previous();
  const float scale = scale_of(fp8);
  const bool copied = fp8.row || fp8.scattered || fp8.amax || fp8.seen;
  const std::int64_t rows = a.o.rows, stride = gridDim.x / groups;
  RawPack<T> raw_x[kAhead] = {}, raw_z[kAhead] = {};
  const auto load = [&](std::int64_t row, int k) {
    if (!used || row >= rows) return;
    load_raw(row_of<T>(a.o, row) + col, vector, raw_x[k]);
    load_raw(row_of<T>(a.projected, row) + gate, vector, raw_z[k]);
  };
  std::int64_t row = blockIdx.x / groups;
#pragma unroll
  for (int k = 0; k < kAhead; ++k) load(row + k * stride, k);
  Met met;
  while (row < rows) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k, row += stride) {
      if (row >= rows) break;
      float x[kPack], z[kPack];
      raw_x[k].get(x);
      raw_z[k].get(z);
      load(row + kAhead * stride, k);
      // All lanes of a warp take part in its sums.
      const float rstd = head_rstd<LANES>(x, share, a.eps);
      if (!used) continue;
      norm_and_gate(x, z, w, rstd);
      if (a.out.data) store_pack(row_of<T>(a.out, row) + col, x, kPack, vector);
      if (!copied) continue;
      round_pack<T>(x);
      take_pack(fp8, x, scale, row, col, kPack, met);
    }
  }
  finish_met(fp8, met, scale, shared);
}

/// gated_norm() with scales of rows. A block has a row at a time, and computes it twice: for the scale, and
/// to write.
template <typename T, int LANES>
__global__ void __launch_bounds__(kThreads)
    gated_norm_rows_kernel(GatedNormArgs a, RowCopy rows, bool vector) {
  __shared__ unsigned shared[kWarp];
  let_next_begin();
  const HeadLanes<LANES> own(a.columns.heads);
  const std::int64_t heads = a.columns.heads.value_heads, dim = a.columns.heads.value_dim;
  const float share = share_of(a.columns.heads);
  float w[kPack] = {};
  if (own.used) load_pack(a.weight + own.col, w, kPack, false);
  wait_for_previous();
  for (std::int64_t row = blockIdx.x; row < a.o.rows; row += gridDim.x) {
    // All lanes of a warp take part in its sums, so the loop has whole turns.
    const auto each_head = [&](auto&& act) {
      for (std::int64_t first = 0; first < heads; first += HeadLanes<LANES>::units) {
        const std::int64_t head = first + own.unit;
        const bool used = own.used && head < heads;
        float x[kPack], z[kPack];
        load_gated<T>(a.o, a.projected, a.columns, row, head, own.col, used, vector, x, z);
        const float rstd = head_rstd<LANES>(x, share, a.eps);
        if (!used) continue;
        norm_and_gate(x, z, w, rstd);
        round_pack<T>(x);
        act(head * dim + own.col, x);
      }
    };
    unsigned most = 0;
    each_head([&](std::int64_t, const float(&y)[kPack]) { raise_most(y, kPack, most); });
    const std::int32_t e = block_exponent(block_reduce(most, shared, Max{}));
    if (threadIdx.x == 0) rows.scale_inv[row] = power_of_two(e);
    each_head([&](std::int64_t col, const float(&y)[kPack]) {
      if (a.out.data) store_pack(row_of<T>(a.out, row) + col, y, kPack, vector);
      write_codes(rows, y, power_of_two(-e), row, col, kPack);
    });
  }
}

/// A block has `block` rows and sums their part of d_weight in `partial` [blocks, value_dim] (null: not
/// wanted). A thread goes through the rows of a head, then of its next head. The next row is in flight while
/// a row is computed: 36 KiB of a multiprocessor at three blocks. Units of lanes are added in order.
template <typename T, int LANES>
__global__ void __launch_bounds__(kThreads, 3)
    gated_norm_backward_kernel(GatedNormBackwardArgs a, std::int64_t block, float* partial, bool vector) {
  __shared__ float sums[HeadLanes<LANES>::units][LANES * kPack + 1];
  const HeadLanes<LANES> own(a.columns.heads);
  const std::int64_t heads = a.columns.heads.value_heads, dim = a.columns.heads.value_dim;
  const float share = share_of(a.columns.heads);
  float w[kPack] = {}, d_weight[kPack] = {};
  if (own.used) load_pack(a.weight + own.col, w, kPack, false);
  const std::int64_t begin = blockIdx.x * block, end = min(begin + block, a.o.rows);
  for (std::int64_t first = 0; first < heads; first += HeadLanes<LANES>::units) {
    const std::int64_t head = first + own.unit;
    const bool used = own.used && head < heads;
    const std::int64_t col = head * dim + own.col, gate = a.columns.gate(head) + own.col;
    RawPack<T> raw_x{}, raw_z{}, raw_d{};
    const auto load = [&](std::int64_t row) {
      if (!used || row >= end) return;
      load_raw(row_of<T>(a.o, row) + col, vector, raw_x);
      load_raw(row_of<T>(a.projected, row) + gate, vector, raw_z);
      load_raw(row_of<T>(a.d_out, row) + col, vector, raw_d);
    };
    load(begin);
    for (std::int64_t row = begin; row < end; ++row) {
      float x[kPack], z[kPack], d[kPack];
      raw_x.get(x);
      raw_z.get(z);
      raw_d.get(d);
      load(row + 1);
      // All lanes of a warp take part in its sums.
      const float rstd = head_rstd<LANES>(x, share, a.eps);
      float dot = 0.0f;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        float value, slope;
        Silu::both(z[i], value, slope);
        x[i] *= rstd;
        const float weighted = d[i] * w[i];
        z[i] = weighted * x[i] * slope;
        d_weight[i] = __fmaf_rn(d[i] * value, x[i], d_weight[i]);
        d[i] = weighted * value;
        dot = __fmaf_rn(d[i], x[i], dot);
      }
      const float mean = group_sum<LANES>(dot) * share;
      if (!used) continue;
#pragma unroll
      for (int i = 0; i < kPack; ++i) d[i] = rstd * __fmaf_rn(-x[i], mean, d[i]);
      store_pack(row_of<T>(a.d_o, row) + col, d, kPack, vector);
      store_pack(row_of<T>(a.d_projected, row) + gate, z, kPack, vector);
    }
  }
  if (partial == nullptr) return;
#pragma unroll
  for (int i = 0; i < kPack; ++i) sums[own.unit][own.col + i] = d_weight[i];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < dim; c += kThreads) {
    float total = 0.0f;
    for (int u = 0; u < HeadLanes<LANES>::units; ++u) total += sums[u][c];
    partial[blockIdx.x * dim + c] = total;
  }
}

/// Calls f with an integral constant: the lanes of a head, a power of two.
template <typename F>
void with_lanes(std::int64_t value_dim, F f) {
  if (value_dim <= 8 * kPack) return f(std::integral_constant<int, 8>{});
  if (value_dim <= 16 * kPack) return f(std::integral_constant<int, 16>{});
  f(std::integral_constant<int, 32>{});
}

}  // namespace

void gated_norm(Stream& stream, const GatedNormArgs& a) {
  const std::int64_t rows = a.o.rows, cols = a.o.cols;
  if (rows == 0) return;
  const QuantizeInto& q = a.quantize;
  const bool vector = packs(a.o) && packs(a.projected) && packs(a.out);
  const auto launch = [&](auto kernel, unsigned grid, const auto&... arguments) {
    launch_early_if(few_rows(rows), kernel, dim3(grid), kThreads, 0, octet::cuda::native(stream),
                    "gated_norm", a, arguments..., vector);
  };
  with_type(a.o.dtype, [&](auto type) {
    with_lanes(a.columns.heads.value_dim, [&](auto lanes) {
      using T = decltype(type);
      constexpr int kLanes = lanes.value;
      if (q.row_scale_inv != nullptr) {
        return launch(gated_norm_rows_kernel<T, kLanes>, grid_of(stream, rows, 1, 2048 / kThreads),
                      row_copy(q.row, q.row_scale_inv, rows, cols));
      }
      const unsigned groups = head_groups<kLanes>(a.columns.heads);
      const unsigned most = std::max(1u, grid_of(stream, rows * groups, 1, 4) / groups);
      launch(gated_norm_kernel<T, kLanes>, groups * most, fp8_out(q, rows, cols));
    });
  });
  finish_transposed(stream, q, rows, cols);
}

void gated_norm_backward(Stream& stream, const GatedNormBackwardArgs& a) {
  const std::int64_t rows = a.o.rows, dim = a.columns.heads.value_dim;
  if (rows == 0) return;
  const bool vector =
      packs(a.o) && packs(a.projected) && packs(a.d_out) && packs(a.d_o) && packs(a.d_projected);
  const std::int64_t block = gated_norm_block(rows), blocks = ceil_div(rows, block);
  float* const partial = a.d_weight ? static_cast<float*>(a.workspace.data) : nullptr;
  with_type(a.o.dtype, [&](auto type) {
    with_lanes(dim, [&](auto lanes) {
      gated_norm_backward_kernel<decltype(type), lanes.value>
          <<<static_cast<unsigned>(blocks), kThreads, 0, octet::cuda::native(stream)>>>(a, block, partial,
                                                                                        vector);
    });
  });
  octet::cuda::check_launch("gated_norm_backward");
  if (partial == nullptr) return;
  add_norm_sums_kernel<<<static_cast<unsigned>(ceil_div(dim, kWarp)), kSumWarps * kWarp, 0,
                         octet::cuda::native(stream)>>>(partial, blocks, dim, a.d_weight);
  octet::cuda::check_launch("gated_norm_backward");
}

}  // namespace octet::ops::cuda
