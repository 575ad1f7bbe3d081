#include "octet/ops/layer_norm.h"

#include "cuda/early_launch.cuh"
#include "cuda/norm_rows.cuh"
#include "cuda/row_quantize.cuh"
#include "cuda/rows.cuh"
#include "cuda/scratch.h"

namespace octet::ops::cuda {
namespace {

/// Calls f(packs) with an integral constant: the packs of a thread.
template <typename F>
void with_packs(int packs, F f) {
  if (packs == 1) return f(std::integral_constant<int, 1>{});
  if (packs == 2) return f(std::integral_constant<int, 2>{});
  if (packs == 4) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 8>{});
}

struct Vector {
  bool rows = false;     ///< packs of all matrices are aligned to 16 bytes
  bool weight = false;   ///< packs of the weight are aligned to 16 bytes
  bool bias = false;     ///< packs of the bias are aligned to 16 bytes
  bool partial = false;  ///< packs of partial sums are aligned to 16 bytes
};

__device__ inline std::int64_t column_of(int pack) {
  return (static_cast<std::int64_t>(pack) * blockDim.x + threadIdx.x) * kPack;
}

/// One block processes a row at a time, which stays in registers.
template <typename T, int kPacks, bool row_scales>
__global__ void __launch_bounds__(kMaxNormThreads)
    layer_norm_kernel(LayerNormArgs a, Fp8Out fp8, RowCopy rows, Vector vector) {
  __shared__ float sums[kWarp], sums_of_squares[kWarp];
  __shared__ unsigned shared[kWarp];
  const std::int64_t hidden = a.residual.cols;
  let_next_begin();
  wait_for_previous();
  const float scale = row_scales ? 1.0f : scale_of(fp8);
  Met met;
  for (std::int64_t row = blockIdx.x; row < a.residual.rows; row += gridDim.x) {
    float x[kPacks][kPack];
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = column_of(p);
      if (col >= hidden) continue;
      const PackAt at = pack_at(col, hidden, vector.rows);
      load_pack(row_of<T>(a.residual, row) + col, x[p], at.n, at.whole);
      if (a.delta.data) {
        float more[kPack];
        load_pack(row_of<T>(a.delta, row) + col, more, at.n, at.whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) x[p][i] += more[i];
        round_pack<T>(x[p]);
      }
      if (a.sum.data) store_pack(row_of<T>(a.sum, row) + col, x[p], at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum += x[p][i];  // elements after the row are 0
    }
    const float mean = __fdiv_rn(block_reduce(sum, sums, Plus{}), static_cast<float>(hidden));
    float squares = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = column_of(p);
      if (col >= hidden) continue;
      const PackAt at = pack_at(col, hidden, vector.rows);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float d = i < at.n ? x[p][i] - mean : 0.0f;
        squares = __fmaf_rn(d, d, squares);
      }
    }
    const float total = block_reduce(squares, sums_of_squares, Plus{});
    const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, static_cast<float>(hidden)) + a.eps));
    if (threadIdx.x == 0) {
      if (a.mean) a.mean[row] = mean;
      if (a.rstd) a.rstd[row] = rstd;
    }
    unsigned most = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = column_of(p);
      if (col >= hidden) continue;
      const PackAt at = pack_at(col, hidden, vector.rows);
      float w[kPack], b[kPack] = {}, y[kPack];
      load_pack(a.weight + col, w, at.n, vector.weight && at.n == kPack);
      if (a.bias) load_pack(a.bias + col, b, at.n, vector.bias && at.n == kPack);
#pragma unroll
      for (int i = 0; i < kPack; ++i) y[i] = (x[p][i] - mean) * rstd * w[i] + b[i];
      round_pack<T>(y);
      if (a.out.data) store_pack(row_of<T>(a.out, row) + col, y, at.n, at.whole);
      if constexpr (row_scales) {
        raise_most(y, at.n, most);
#pragma unroll
        for (int i = 0; i < kPack; ++i) x[p][i] = y[i];
      } else {
        take_pack(fp8, y, scale, row, col, at.n, met);
      }
    }
    if constexpr (row_scales) {
      const std::int32_t e = block_exponent(block_reduce(most, shared, Max{}));
      if (threadIdx.x == 0) rows.scale_inv[row] = power_of_two(e);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const std::int64_t col = column_of(p);
        if (col >= hidden) continue;
        const PackAt at = pack_at(col, hidden, vector.rows);
        write_codes(rows, x[p], power_of_two(-e), row, col, at.n);
      }
    }
  }
  if constexpr (!row_scales) finish_met(fp8, met, scale, shared);
}

/// A block owns `block` rows and sums their parts of d_weight and d_bias in row order. `weights`, `biases`:
/// partial sums [blocks, hidden]; null: not computed.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kMaxNormThreads)
    layer_norm_backward_kernel(LayerNormBackwardArgs a, std::int64_t block, float* weights, float* biases,
                               Fp8Out fp8, Vector vector) {
  __shared__ float sums[kWarp], dots[kWarp];
  __shared__ unsigned shared[kWarp];
  const std::int64_t hidden = a.dy.cols;
  const float scale = scale_of(fp8);
  Met met;
  float d_weight[kPacks][kPack] = {}, d_bias[kPacks][kPack] = {};
  const std::int64_t first = blockIdx.x * block;
  const std::int64_t end = first + block < a.dy.rows ? first + block : a.dy.rows;
  for (std::int64_t row = first; row < end; ++row) {
    const float rstd = a.rstd[row], mean = a.mean[row];
    float dyw[kPacks][kPack], xhat[kPacks][kPack];
    float sum = 0, dot = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = column_of(p);
      if (col >= hidden) continue;
      const PackAt at = pack_at(col, hidden, vector.rows);
      float w[kPack];
      load_pack(row_of<T>(a.dy, row) + col, dyw[p], at.n, at.whole);
      load_pack(row_of<T>(a.x, row) + col, xhat[p], at.n, at.whole);
      load_pack(a.weight + col, w, at.n, vector.weight && at.n == kPack);
      // Elements after the row have a gradient of 0.
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        xhat[p][i] = (xhat[p][i] - mean) * rstd;
        d_weight[p][i] = __fmaf_rn(dyw[p][i], xhat[p][i], d_weight[p][i]);
        d_bias[p][i] += dyw[p][i];
        dyw[p][i] *= w[i];
        sum += dyw[p][i];
        dot = __fmaf_rn(dyw[p][i], xhat[p][i], dot);
      }
    }
    const float mean_d = __fdiv_rn(block_reduce(sum, sums, Plus{}), static_cast<float>(hidden));
    const float mean_dot = __fdiv_rn(block_reduce(dot, dots, Plus{}), static_cast<float>(hidden));
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = column_of(p);
      if (col >= hidden) continue;
      const PackAt at = pack_at(col, hidden, vector.rows);
      T* to = row_of<T>(a.d_residual, row) + col;
      float d[kPack], there[kPack] = {};
      if (a.accumulate) load_pack(static_cast<const T*>(to), there, at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        d[i] = __fmaf_rn(rstd, __fmaf_rn(-xhat[p][i], mean_dot, dyw[p][i] - mean_d), there[i]);
      }
      round_pack<T>(d);
      store_pack(to, d, at.n, at.whole);
      take_pack(fp8, d, scale, row, col, at.n, met);
    }
  }
  finish_met(fp8, met, scale, shared);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const std::int64_t col = column_of(p);
    if (col >= hidden) continue;
    const PackAt at = pack_at(col, hidden, vector.partial);
    if (weights) store_pack(weights + blockIdx.x * hidden + col, d_weight[p], at.n, at.whole);
    if (biases) store_pack(biases + blockIdx.x * hidden + col, d_bias[p], at.n, at.whole);
  }
}

}  // namespace

void layer_norm(Stream& stream, const LayerNormArgs& a) {
  const std::int64_t rows = a.residual.rows, hidden = a.residual.cols;
  if (rows == 0) return;
  const NormShape shape = norm_shape(hidden, "layer_norm: a row has at most 32768 elements on a GPU");
  const Vector vector{.rows = packs(a.residual) && packs(a.delta) && packs(a.sum) && packs(a.out),
                      .weight = packs(a.weight),
                      .bias = packs(a.bias)};
  const unsigned grid = grid_of(stream, rows, 1, 2048 / shape.threads);
  const QuantizeInto& q = a.quantize;
  const bool row_scales = q.row_scale_inv != nullptr;
  const Fp8Out fp8 = row_scales ? Fp8Out{} : fp8_out(q, rows, hidden);
  const RowCopy copy = row_scales ? row_copy(q.row, q.row_scale_inv, rows, hidden) : RowCopy{};
  with_type(a.residual.dtype, [&](auto type) {
    with_packs(shape.packs, [&](auto packs_each) {
      using T = decltype(type);
      constexpr int kPacks = packs_each.value;
      launch_early_if(few_rows(rows),
                      row_scales ? layer_norm_kernel<T, kPacks, true> : layer_norm_kernel<T, kPacks, false>,
                      dim3(grid), shape.threads, 0, octet::cuda::native(stream), "layer_norm", a, fp8, copy,
                      vector);
    });
  });
  finish_transposed(stream, a.quantize, rows, hidden);
}

void layer_norm_backward(Stream& stream, const LayerNormBackwardArgs& a) {
  const std::int64_t rows = a.dy.rows, hidden = a.dy.cols;
  if (rows == 0) return;
  const NormShape shape = norm_shape(hidden, "layer_norm: a row has at most 32768 elements on a GPU");
  const Vector vector{.rows = packs(a.dy) && packs(a.x) && packs(a.d_residual),
                      .weight = packs(a.weight),
                      .partial = hidden % 4 == 0};
  const Fp8Out fp8 = fp8_out(a.quantize, rows, hidden);
  const std::int64_t block = norm_backward_block(rows, hidden);
  const std::int64_t blocks = ceil_div(rows, block);
  auto* const partial = static_cast<float*>(a.workspace.data);
  float* const weights = a.d_weight ? partial : nullptr;
  float* const biases = a.d_bias ? partial + blocks * hidden : nullptr;
  with_type(a.dy.dtype, [&](auto type) {
    with_packs(shape.packs, [&](auto packs_each) {
      layer_norm_backward_kernel<decltype(type), packs_each.value>
          <<<static_cast<unsigned>(blocks), shape.threads, 0, octet::cuda::native(stream)>>>(
              a, block, weights, biases, fp8, vector);
    });
  });
  octet::cuda::check_launch("layer_norm_backward");
  const auto add = [&](const float* from, float* to) {
    if (!from) return;
    add_norm_sums_kernel<<<static_cast<unsigned>(ceil_div(hidden, kWarp)), kSumWarps * kWarp, 0,
                           octet::cuda::native(stream)>>>(from, blocks, hidden, to);
    octet::cuda::check_launch("layer_norm_backward");
  };
  add(weights, a.d_weight);
  add(biases, a.d_bias);
  finish_transposed(stream, a.quantize, rows, hidden);
}

}  // namespace octet::ops::cuda
