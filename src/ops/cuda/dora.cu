#include "octet/ops/dora.h"

#include "cuda/column_sums.cuh"
#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
/// Weight rows per block, so that A is read once for all of them.
constexpr int kNormRows = 8;

__device__ inline float weight_value(const Operand& w, std::int64_t at) {
  if (w.dtype == DType::f32) return static_cast<const float*>(w.data)[at];
  if (w.dtype == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(w.data)[at]);
  const auto code = static_cast<const __nv_fp8_storage_t*>(w.data)[at];
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, w.dtype == DType::e4m3 ? __NV_E4M3 : __NV_E5M2);
  return __half2float(__half(half)) * *w.scale_inv;
}

/// Columns of B in shared memory at a time.
constexpr int kNormRanks = 64;

// A thread processes columns of the weight, one at a time, for all rows of its block. The factors from B are
// in shared memory, and all lanes read the same address.
template <typename T>
__global__ void __launch_bounds__(kThreads) dora_scale_kernel(DoraScaleArgs a) {
  __shared__ float shared[kWarp];
  __shared__ __align__(16) float factors[kNormRanks][kNormRows];
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kNormRows);
  const std::int64_t rank = a.a.rows, cols = a.weight.cols;
  const auto fetch = [&](std::int64_t begin, int count) {
    for (int i = threadIdx.x; i < count * kNormRows; i += kThreads) {
      const int j = i % kNormRows, r = i / kNormRows;
      const bool inside = first + j < a.weight.rows;
      factors[r][j] = inside ? a.factor * to_float(row_of<T>(a.b, first + j)[begin + r]) : 0.0f;
    }
  };
  const bool once = rank <= kNormRanks;
  if (once) fetch(0, static_cast<int>(rank));
  __syncthreads();
  float sums[kNormRows] = {};
  // All threads have the same number of iterations, because they load B together.
  for (std::int64_t turn = 0; turn < cols; turn += kThreads) {
    const std::int64_t c = turn + threadIdx.x;
    float w[kNormRows];
#pragma unroll
    for (int j = 0; j < kNormRows; ++j) {
      const bool inside = c < cols && first + j < a.weight.rows;
      w[j] = inside ? weight_value(a.weight, (first + j) * cols + c) : 0.0f;
    }
    for (std::int64_t begin = 0; begin < rank; begin += kNormRanks) {
      const std::int64_t left = rank - begin;
      const int count = left < kNormRanks ? static_cast<int>(left) : kNormRanks;
      if (!once) {
        __syncthreads();
        fetch(begin, count);
        __syncthreads();
      }
      if (c >= cols) continue;
#pragma unroll 4
      for (int r = 0; r < count; ++r) {
        const float x = to_float(row_of<T>(a.a, begin + r)[c]);
#pragma unroll
        for (int j = 0; j < kNormRows; ++j) w[j] += factors[r][j] * x;
      }
    }
#pragma unroll
    for (int j = 0; j < kNormRows; ++j) sums[j] += w[j] * w[j];
  }
  for (int j = 0; j < kNormRows; ++j) {
    const float norm = sqrtf(block_reduce(sums[j], shared, Plus{}));
    if (threadIdx.x != 0 || first + j >= a.weight.rows) continue;
    a.norm[first + j] = norm;
    a.scale[first + j] = norm == 0.0f ? 0.0f : a.magnitude[first + j] / norm;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) scale_columns_kernel(ScaleColumnsArgs a, bool vector) {
  const std::int64_t row_packs = (a.x.cols + kPack - 1) / kPack;
  const std::int64_t count = a.x.rows * row_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; p < count;
       p += stride) {
    const std::int64_t row = p / row_packs, col = p % row_packs * kPack;
    const PackAt at = pack_at(col, a.x.cols, vector);
    float x[kPack], addend[kPack] = {};
    load_pack(row_of<T>(a.x, row) + col, x, at.n, at.whole);
    if (a.addend.data) load_pack(row_of<T>(a.addend, row) + col, addend, at.n, at.whole);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (j >= at.n) break;
      x[j] *= a.scale[col + j];
      if (a.bias) x[j] += a.bias[col + j];
      if (a.addend.data) x[j] += addend[j];
    }
    store_pack(row_of<T>(a.out, row) + col, x, at.n, at.whole);
  }
}

template <typename T>
struct DotTerms {
  ConstMatrix x, y;
  const float* divisor;
  float* sums;
  bool vector;
  __host__ __device__ std::int64_t rows() const { return x.rows; }
  __host__ __device__ std::int64_t cols() const { return x.cols; }
  __device__ void load(std::int64_t row, std::int64_t col, const PackAt& at, float (&terms)[kPack]) const {
    float factors[kPack];
    load_pack(row_of<T>(x, row) + col, terms, at.n, at.whole);
    load_pack(row_of<T>(y, row) + col, factors, at.n, at.whole);
#pragma unroll
    for (int j = 0; j < kPack; ++j) terms[j] *= factors[j];
  }
  __device__ void add(std::int64_t col, float sum) const {
    if (divisor[col] != 0.0f) sums[col] += sum / divisor[col];
  }
};

}  // namespace

void dora_scale(Stream& stream, const DoraScaleArgs& a) {
  if (a.weight.rows == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(a.weight.rows, kNormRows));
  with_type(a.a.dtype, [&](auto type) {
    dora_scale_kernel<decltype(type)><<<blocks, kThreads, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("dora_scale");
}

void scale_columns(Stream& stream, const ScaleColumnsArgs& a) {
  if (a.x.rows * a.x.cols == 0) return;
  const bool vector = packs(a.x) && packs(a.out) && packs(a.addend);
  const std::int64_t count = a.x.rows * ceil_div(a.x.cols, kPack);
  with_type(a.x.dtype, [&](auto type) {
    scale_columns_kernel<decltype(type)>
        <<<grid_of(stream, count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(a, vector);
  });
  octet::cuda::check_launch("scale_columns");
}

void dot_columns(Stream& stream, const DotColumnsArgs& a) {
  if (a.x.rows * a.x.cols == 0) return;
  with_type(a.x.dtype, [&](auto type) {
    sum_columns(octet::cuda::native(stream),
                DotTerms<decltype(type)>{a.x, a.y, a.divisor, a.sums, packs(a.x) && packs(a.y)},
                "dot_columns");
  });
}

}  // namespace octet::ops::cuda
