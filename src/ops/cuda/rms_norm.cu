#include "cuda/early_launch.cuh"
#include "cuda/norm_rows.cuh"
#include "cuda/row_quantize.cuh"
#include "cuda/rows.cuh"
#include "cuda/scratch.h"

namespace octet::ops::cuda {
namespace {

constexpr const char* kTooWide = "rms_norm: a row has at most 32768 elements on a GPU";

/// Calls f(packs, whole) with integral constants: the packs of a thread, and whether rows are prefetched.
/// With many packs, a prefetch would take too many registers.
template <typename F>
void with_packs(int packs, bool whole, F f) {
  const auto call = [&](auto count) {
    if (whole) return f(count, std::true_type{});
    f(count, std::false_type{});
  };
  switch (packs) {
    case 1:
      return call(std::integral_constant<int, 1>{});
    case 2:
      return call(std::integral_constant<int, 2>{});
    case 4:
      return f(std::integral_constant<int, 4>{}, std::false_type{});
    default:
      return f(std::integral_constant<int, 8>{}, std::false_type{});
  }
}

struct Vector {
  bool rows = false;    ///< packs of all matrices are aligned to 16 bytes
  bool weight = false;  ///< packs of the weight are aligned to 16 bytes
};

/// The packs of a thread's columns in some rows, in memory format. They are prefetched one row ahead, so that
/// memory latency overlaps the reductions of the block.
template <typename T, int kPacks>
struct RowAhead {
  RawPack<T> pack[kPacks];
  template <typename M>
  __device__ void fetch(const M& m, std::int64_t row) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
      if (col < m.cols) pack[p].load(row_of<T>(m, row) + col);
    }
  }
};

/// Reads a pack of a row: from the prefetched packs if all packs are whole, else from memory.
template <typename T, int kPacks, bool whole, typename M>
__device__ inline void take(const RowAhead<T, kPacks>& ahead, const M& m, std::int64_t row, int p,
                            std::int64_t col, const PackAt& at, float (&x)[kPack]) {
  if constexpr (whole) {
    ahead.pack[p].get(x);
  } else {
    load_pack(static_cast<const T*>(row_of<T>(m, row) + col), x, at.n, at.whole);
  }
}

/// If packs are whole, this is a compile-time constant.
template <bool whole>
__device__ inline PackAt place_of(std::int64_t col, std::int64_t cols, bool vector) {
  return whole ? PackAt{kPack, true} : pack_at(col, cols, vector);
}
/// take_pack() with a compile-time constant if all packs, including packs of the row copy, are whole.
template <bool whole>
__device__ inline void quantize_pack(const Fp8Out& out, const float (&y)[kPack], float scale,
                                     std::int64_t row, std::int64_t col, int n, Met& met) {
  if constexpr (whole) {
    meet_pack(out, y, scale, kPack, met);
    if (!out.row) return;
    *reinterpret_cast<uint2*>(out.row + row * out.cols + col) = to_fp8_pack(y, scale, out.e4m3);
  } else {
    take_pack(out, y, scale, row, col, n, met);
  }
}
/// True if all packs of an FP8 copy move as a whole.
bool whole_copies(const Fp8Out& fp8) {
  return !fp8.scattered && (!fp8.row || fp8.vector);
}

/// Loads the factors of the columns of a thread, which are equal for all rows: the weight, or one plus the
/// weight.
template <int kPacks>
__device__ inline void load_factors(const float* weight, float one, std::int64_t hidden, bool vector,
                                    float (&w)[kPacks][kPack]) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
    if (col >= hidden) continue;
    const PackAt at = pack_at(col, hidden, true);
    load_pack(weight + col, w[p], at.n, vector && at.n == kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i) w[p][i] += one;
  }
}

/// The copies of the output of a norm: an FP8 copy with one scale, or with a scale per row.
template <bool row_scales>
struct NormCopy {
  Fp8Out fp8;
  RowCopy rows;
};

/// whole: all packs of all matrices are full and aligned.
template <typename T, int kPacks, bool whole, bool row_scales>
__global__ void __launch_bounds__(kMaxNormThreads)
    norm_kernel(RmsNormArgs a, NormCopy<row_scales> copy, Vector vector) {
  const Fp8Out& fp8 = copy.fp8;
  __shared__ float sums[kWarp];
  __shared__ unsigned shared[kWarp];
  const std::int64_t hidden = a.residual.cols;
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  Met met;
  float w[kPacks][kPack];
  let_next_begin();
  load_factors(a.weight, one, hidden, vector.weight, w);
  wait_for_previous();
  const float scale = row_scales ? 1.0f : scale_of(fp8);
  RowAhead<T, kPacks> residual, delta;
  const auto fetch = [&](std::int64_t row) {
    if (!whole || row >= a.residual.rows) return;
    residual.fetch(a.residual, row);
    if (a.delta.data) delta.fetch(a.delta, row);
  };
  fetch(blockIdx.x);
  for (std::int64_t row = blockIdx.x; row < a.residual.rows; row += gridDim.x) {
    float x[kPacks][kPack];
    float squares = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
      if (col >= hidden) continue;
      const PackAt at = place_of<whole>(col, hidden, vector.rows);
      take<T, kPacks, whole>(residual, a.residual, row, p, col, at, x[p]);
      if (a.delta.data) {
        float more[kPack];
        take<T, kPacks, whole>(delta, a.delta, row, p, col, at, more);
#pragma unroll
        for (int i = 0; i < kPack; ++i) x[p][i] += more[i];
        round_pack<T>(x[p]);
      }
    }
    fetch(row + gridDim.x);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
      if (col >= hidden) continue;
      const PackAt at = place_of<whole>(col, hidden, vector.rows);
      if (a.sum.data) store_pack(row_of<T>(a.sum, row) + col, x[p], at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) squares = __fmaf_rn(x[p][i], x[p][i], squares);
    }
    const float total = block_reduce(squares, sums, Plus{});
    const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, static_cast<float>(hidden)) + a.eps));
    if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
    unsigned most = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
      if (col >= hidden) continue;
      const PackAt at = place_of<whole>(col, hidden, vector.rows);
      float y[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) y[i] = x[p][i] * rstd * w[p][i];
      round_pack<T>(y);
      if (a.out.data) store_pack(row_of<T>(a.out, row) + col, y, at.n, at.whole);
      if constexpr (row_scales) {
        raise_most(y, at.n, most);
#pragma unroll
        for (int i = 0; i < kPack; ++i) x[p][i] = y[i];
      } else {
        quantize_pack<whole>(fp8, y, scale, row, col, at.n, met);
      }
    }
    if constexpr (row_scales) {
      const std::int32_t e = block_exponent(block_reduce(most, shared, Max{}));
      if (threadIdx.x == 0) copy.rows.scale_inv[row] = power_of_two(e);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
        if (col >= hidden) continue;
        const PackAt at = place_of<whole>(col, hidden, vector.rows);
        write_codes(copy.rows, x[p], power_of_two(-e), row, col, at.n);
      }
    }
  }
  if constexpr (!row_scales) finish_met(fp8, met, scale, shared);
}

// A block owns `block` rows and sums their part of d_weight in row order.
template <typename T, int kPacks, bool whole>
__global__ void __launch_bounds__(kMaxNormThreads, kPacks == 1 ? 2 : 1)
    norm_backward_kernel(RmsNormBackwardArgs a, std::int64_t block, Fp8Out fp8, Vector vector) {
  __shared__ float sums[kWarp];
  __shared__ unsigned shared[kWarp];
  const std::int64_t hidden = a.dy.cols;
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  const float scale = scale_of(fp8);
  Met met;
  float d_weight[kPacks][kPack] = {};
  float w[kPacks][kPack];
  load_factors(a.weight, one, hidden, vector.weight, w);
  const std::int64_t first = blockIdx.x * block;
  const std::int64_t end = first + block < a.dy.rows ? first + block : a.dy.rows;
  RowAhead<T, kPacks> dy, x, residual;
  const auto fetch = [&](std::int64_t row) {
    if (!whole || row >= end) return;
    dy.fetch(a.dy, row);
    x.fetch(a.x, row);
  };
  fetch(first);
  float next_rstd = first < end ? a.rstd[first] : 0.0f;
  for (std::int64_t row = first; row < end; ++row) {
    const float rstd = next_rstd;
    if (row + 1 < end) next_rstd = a.rstd[row + 1];
    // It is needed after the sum over the row, so this load has enough time without a prefetch of one row.
    if (whole && a.accumulate) residual.fetch(a.d_residual, row);
    float dyw[kPacks][kPack];
    float xhat[kPacks][kPack];
    float dot = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
      if (col >= hidden) continue;
      const PackAt at = place_of<whole>(col, hidden, vector.rows);
      take<T, kPacks, whole>(dy, a.dy, row, p, col, at, dyw[p]);
      take<T, kPacks, whole>(x, a.x, row, p, col, at, xhat[p]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        xhat[p][i] *= rstd;
        d_weight[p][i] = __fmaf_rn(dyw[p][i], xhat[p][i], d_weight[p][i]);
        dyw[p][i] *= w[p][i];
        dot = __fmaf_rn(dyw[p][i], xhat[p][i], dot);
      }
    }
    fetch(row + 1);
    const float mean = __fdiv_rn(block_reduce(dot, sums, Plus{}), static_cast<float>(hidden));
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
      if (col >= hidden) continue;
      const PackAt at = place_of<whole>(col, hidden, vector.rows);
      T* to = row_of<T>(a.d_residual, row) + col;
      float d[kPack];
      float there[kPack] = {};
      if (a.accumulate) take<T, kPacks, whole>(residual, a.d_residual, row, p, col, at, there);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        d[i] = __fmaf_rn(rstd, __fmaf_rn(-xhat[p][i], mean, dyw[p][i]), there[i]);
      }
      round_pack<T>(d);
      store_pack(to, d, at.n, at.whole);
      quantize_pack<whole>(fp8, d, scale, row, col, at.n, met);
    }
  }
  finish_met(fp8, met, scale, shared);
  if (!a.d_weight) return;
  float* partial = static_cast<float*>(a.workspace.data) + blockIdx.x * hidden;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const std::int64_t col = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * kPack;
    if (col >= hidden) continue;
    const PackAt at = pack_at(col, hidden, hidden % 4 == 0);
    store_pack(partial + col, d_weight[p], at.n, at.whole);
  }
}

}  // namespace

void rms_norm(Stream& stream, const RmsNormArgs& a) {
  if (a.residual.rows == 0) return;
  const NormShape shape = norm_shape(a.residual.cols, kTooWide);
  const Vector vector{.rows = packs(a.residual) && packs(a.delta) && packs(a.sum) && packs(a.out),
                      .weight = packs(a.weight)};
  const unsigned grid = grid_of(stream, a.residual.rows, 1, 2048 / shape.threads);
  const Fp8Out fp8 = fp8_out(a.quantize, a.residual.rows, a.residual.cols);
  const bool whole = vector.rows && a.residual.cols % kPack == 0 && whole_copies(fp8);
  with_type(a.residual.dtype, [&](auto type) {
    with_packs(shape.packs, whole, [&](auto packs_each, auto ahead) {
      const auto launch = [&](const auto& copy, auto row_scales) {
        launch_early_if(few_rows(a.residual.rows),
                        norm_kernel<decltype(type), packs_each.value, ahead.value, row_scales.value>,
                        dim3(grid), shape.threads, 0, octet::cuda::native(stream), "rms_norm", a, copy,
                        vector);
      };
      const QuantizeInto& q = a.quantize;
      if (q.row_scale_inv != nullptr) {
        const RowCopy rows = row_copy(q.row, q.row_scale_inv, a.residual.rows, a.residual.cols);
        return launch(NormCopy<true>{.fp8 = {}, .rows = rows}, std::true_type{});
      }
      launch(NormCopy<false>{.fp8 = fp8, .rows = {}}, std::false_type{});
    });
  });
  finish_transposed(stream, a.quantize, a.residual.rows, a.residual.cols);
}

void rms_norm_backward(Stream& stream, const RmsNormBackwardArgs& a) {
  const std::int64_t rows = a.dy.rows, hidden = a.dy.cols;
  if (rows == 0) return;
  const NormShape shape = norm_shape(hidden, kTooWide);
  const Vector vector{.rows = packs(a.dy) && packs(a.x) && packs(a.d_residual), .weight = packs(a.weight)};
  const Fp8Out fp8 = fp8_out(a.quantize, rows, hidden);
  const bool whole = vector.rows && hidden % kPack == 0 && whole_copies(fp8);
  const std::int64_t block = norm_backward_block(rows, hidden);
  const std::int64_t blocks = ceil_div(rows, block);
  with_type(a.dy.dtype, [&](auto type) {
    with_packs(shape.packs, whole, [&](auto packs_each, auto ahead) {
      norm_backward_kernel<decltype(type), packs_each.value, ahead.value>
          <<<static_cast<unsigned>(blocks), shape.threads, 0, octet::cuda::native(stream)>>>(a, block, fp8,
                                                                                             vector);
    });
  });
  octet::cuda::check_launch("rms_norm_backward");
  if (a.d_weight) {
    add_norm_sums_kernel<<<static_cast<unsigned>(ceil_div(hidden, kWarp)), kSumWarps * kWarp, 0,
                           octet::cuda::native(stream)>>>(static_cast<const float*>(a.workspace.data), blocks,
                                                          hidden, a.d_weight);
    octet::cuda::check_launch("rms_norm_backward");
  }
  finish_transposed(stream, a.quantize, rows, hidden);
}

}  // namespace octet::ops::cuda
