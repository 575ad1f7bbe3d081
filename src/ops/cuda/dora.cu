#include "octet/ops/dora.h"

#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
/// Rows of the weight that a block works on, so that A is read once for all of them.
constexpr int kNormRows = 8;

__device__ inline float weight_value(const Operand& w, std::int64_t at) {
  if (w.dtype == DType::f32) return static_cast<const float*>(w.data)[at];
  if (w.dtype == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(w.data)[at]);
  const auto code = static_cast<const __nv_fp8_storage_t*>(w.data)[at];
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, w.dtype == DType::e4m3 ? __NV_E4M3 : __NV_E5M2);
  return __half2float(__half(half)) * *w.scale_inv;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) dora_scale_kernel(DoraScaleArgs a) {
  __shared__ float shared[kWarp];
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kNormRows);
  float sums[kNormRows] = {};
  for (std::int64_t c = threadIdx.x; c < a.weight.cols; c += kThreads) {
    float w[kNormRows];
#pragma unroll
    for (int j = 0; j < kNormRows; ++j) {
      w[j] = first + j < a.weight.rows ? weight_value(a.weight, (first + j) * a.weight.cols + c) : 0.0f;
    }
    for (std::int64_t r = 0; r < a.a.rows; ++r) {
      const float x = to_float(row_of<T>(a.a, r)[c]);
#pragma unroll
      for (int j = 0; j < kNormRows; ++j) {
        if (first + j < a.weight.rows) w[j] += a.factor * to_float(row_of<T>(a.b, first + j)[r]) * x;
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

// A block has 32 columns, and 8 threads for each that share out the rows; what they found is added in order.
constexpr int kDotColumns = 32;
constexpr int kDotRows = kThreads / kDotColumns;

template <typename T>
__global__ void __launch_bounds__(kThreads) dot_columns_kernel(DotColumnsArgs a) {
  __shared__ float sums[kDotRows][kDotColumns];
  const int column = threadIdx.x % kDotColumns, lane = threadIdx.x / kDotColumns;
  const std::int64_t col = blockIdx.x * static_cast<std::int64_t>(kDotColumns) + column;
  float all = 0.0f;
  for (std::int64_t row = lane; col < a.x.cols && row < a.x.rows;) {
    float sum = 0.0f;
    for (int i = 0; i < 64 && row < a.x.rows; ++i, row += kDotRows) {
      sum += to_float(row_of<T>(a.x, row)[col]) * to_float(row_of<T>(a.y, row)[col]);
    }
    all += sum;
  }
  sums[lane][column] = all;
  __syncthreads();
  if (lane != 0 || col >= a.x.cols) return;
  for (int i = 1; i < kDotRows; ++i) all += sums[i][column];
  if (a.divisor[col] != 0.0f) a.sums[col] += all / a.divisor[col];
}

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
    dot_columns_kernel<decltype(type)><<<static_cast<unsigned>(ceil_div(a.x.cols, kDotColumns)), kThreads, 0,
                                         octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("dot_columns");
}

}  // namespace octet::ops::cuda
