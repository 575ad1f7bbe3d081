#include "octet/ops/gated_norm.h"

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

template <int LANES>
__device__ inline float head_rstd(const float (&x)[kPack], std::int64_t value_dim, float eps) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPack; ++i) squares = __fmaf_rn(x[i], x[i], squares);
  squares = group_sum<LANES>(squares);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, static_cast<float>(value_dim)) + eps));
}

/// A block has a row at a time. With scales of rows, it computes the row twice: for the scale, and to write.
template <typename T, int LANES, bool row_scales>
__global__ void __launch_bounds__(kThreads)
    gated_norm_kernel(GatedNormArgs a, Fp8Out fp8, RowCopy rows, bool vector) {
  __shared__ unsigned shared[kWarp];
  let_next_begin();
  const HeadLanes<LANES> own(a.columns.heads);
  const std::int64_t heads = a.columns.heads.value_heads, dim = a.columns.heads.value_dim;
  float w[kPack] = {};
  if (own.used) load_pack(a.weight + own.col, w, kPack, false);
  wait_for_previous();
  const float scale = row_scales ? 1.0f : scale_of(fp8);
  Met met;
  for (std::int64_t row = blockIdx.x; row < a.o.rows; row += gridDim.x) {
    // All lanes of a warp take part in its sums, so the loop has whole turns.
    const auto each_head = [&](auto&& act) {
      for (std::int64_t first = 0; first < heads; first += HeadLanes<LANES>::units) {
        const std::int64_t head = first + own.unit;
        const bool used = own.used && head < heads;
        float x[kPack], z[kPack];
        load_gated<T>(a.o, a.projected, a.columns, row, head, own.col, used, vector, x, z);
        const float rstd = head_rstd<LANES>(x, dim, a.eps);
        if (!used) continue;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          float value, slope;
          Silu::both(z[i], value, slope);
          x[i] = x[i] * rstd * w[i] * value;
        }
        round_pack<T>(x);
        act(head * dim + own.col, x);
      }
    };
    float row_scale = 1.0f;
    if constexpr (row_scales) {
      unsigned most = 0;
      each_head([&](std::int64_t, const float(&y)[kPack]) { raise_most(y, kPack, most); });
      const std::int32_t e = block_exponent(block_reduce(most, shared, Max{}));
      if (threadIdx.x == 0) rows.scale_inv[row] = power_of_two(e);
      row_scale = power_of_two(-e);
    }
    each_head([&](std::int64_t col, const float(&y)[kPack]) {
      if (a.out.data) store_pack(row_of<T>(a.out, row) + col, y, kPack, vector);
      if constexpr (row_scales) {
        write_codes(rows, y, row_scale, row, col, kPack);
      } else {
        take_pack(fp8, y, scale, row, col, kPack, met);
      }
    });
  }
  if constexpr (!row_scales) finish_met(fp8, met, scale, shared);
}

/// A block has `block` rows and sums their part of d_weight in `partial` [blocks, value_dim] (null: not
/// wanted). Units of lanes are added in order.
template <typename T, int LANES>
__global__ void __launch_bounds__(kThreads)
    gated_norm_backward_kernel(GatedNormBackwardArgs a, std::int64_t block, float* partial, bool vector) {
  __shared__ float sums[HeadLanes<LANES>::units][LANES * kPack + 1];
  const HeadLanes<LANES> own(a.columns.heads);
  const std::int64_t heads = a.columns.heads.value_heads, dim = a.columns.heads.value_dim;
  float w[kPack] = {}, d_weight[kPack] = {};
  if (own.used) load_pack(a.weight + own.col, w, kPack, false);
  const std::int64_t begin = blockIdx.x * block, end = min(begin + block, a.o.rows);
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t first = 0; first < heads; first += HeadLanes<LANES>::units) {
      const std::int64_t head = first + own.unit;
      const bool used = own.used && head < heads;
      float x[kPack], z[kPack], d[kPack] = {};
      load_gated<T>(a.o, a.projected, a.columns, row, head, own.col, used, vector, x, z);
      if (used) load_pack(row_of<T>(a.d_out, row) + head * dim + own.col, d, kPack, vector);
      const float rstd = head_rstd<LANES>(x, dim, a.eps);
      float dot = 0.0f;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        float value, slope;
        Silu::both(z[i], value, slope);
        x[i] *= rstd;
        z[i] = d[i] * x[i] * w[i] * slope;
        d_weight[i] = __fmaf_rn(d[i] * value, x[i], d_weight[i]);
        d[i] *= w[i] * value;
        dot = __fmaf_rn(d[i], x[i], dot);
      }
      const float mean = __fdiv_rn(group_sum<LANES>(dot), static_cast<float>(dim));
      if (!used) continue;
#pragma unroll
      for (int i = 0; i < kPack; ++i) d[i] = rstd * __fmaf_rn(-x[i], mean, d[i]);
      store_pack(row_of<T>(a.d_o, row) + head * dim + own.col, d, kPack, vector);
      store_pack(row_of<T>(a.d_projected, row) + a.columns.gate(head) + own.col, z, kPack, vector);
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
  if (a.o.rows == 0) return;
  const QuantizeInto& q = a.quantize;
  const bool row_scales = q.row_scale_inv != nullptr;
  const bool vector = packs(a.o) && packs(a.projected) && packs(a.out);
  const Fp8Out fp8 = row_scales ? Fp8Out{} : fp8_out(q, a.o.rows, a.o.cols);
  const RowCopy rows = row_scales ? row_copy(q.row, q.row_scale_inv, a.o.rows, a.o.cols) : RowCopy{};
  const unsigned grid = grid_of(stream, a.o.rows, 1, 2048 / kThreads);
  with_type(a.o.dtype, [&](auto type) {
    with_lanes(a.columns.heads.value_dim, [&](auto lanes) {
      using T = decltype(type);
      constexpr int kLanes = lanes.value;
      launch_early_if(few_rows(a.o.rows),
                      row_scales ? gated_norm_kernel<T, kLanes, true> : gated_norm_kernel<T, kLanes, false>,
                      dim3(grid), kThreads, 0, octet::cuda::native(stream), "gated_norm", a, fp8, rows,
                      vector);
    });
  });
  finish_transposed(stream, q, a.o.rows, a.o.cols);
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
