#include "octet/ops/expert_bias.h"

#include "cuda/column_sums.cuh"
#include "cuda/rows.cuh"
#include "kernels.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Returns the expert of a row, or -1 for a row that belongs to no expert.
__device__ int expert_of(const std::int32_t* begins, std::int64_t count, std::int64_t row) {
  if (row >= begins[count]) return -1;
  int low = 0, high = static_cast<int>(count);  // begins[low] <= row < begins[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    begins[middle] <= row ? low = middle : high = middle;
  }
  return low;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(ExpertBiasArgs a, bool vector) {
  const std::int64_t row_packs = (a.x.cols + kPack - 1) / kPack, all = a.x.rows * row_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; p < all;
       p += stride) {
    const std::int64_t row = p / row_packs, col = p % row_packs * kPack;
    const int expert = expert_of(a.begins, a.count, row);
    if (expert < 0) continue;
    const PackAt at = pack_at(col, a.x.cols, vector);
    T* const to = row_of<T>(a.x, row) + col;
    const float* const bias = a.bias + expert * a.x.cols + col;
    float x[kPack];
    load_pack(static_cast<const T*>(to), x, at.n, at.whole);
    for (int i = 0; i < at.n; ++i) x[i] += bias[i];
    store_pack(to, x, at.n, at.whole);
  }
}

/// The rows of one expert, for sum_of_part().
template <typename T>
struct RowsOfExpert {
  ConstMatrix d_y;
  std::int64_t first, count;
  bool vector;
  __device__ std::int64_t rows() const { return count; }
  __device__ std::int64_t cols() const { return d_y.cols; }
  __device__ void load(std::int64_t row, std::int64_t col, PackAt at, float (&x)[kPack]) const {
    load_pack(row_of<T>(d_y, first + row) + col, x, at.n, at.whole);
  }
};

/// Block (columns, expert).
template <typename T>
__global__ void __launch_bounds__(kSumThreads) bias_gradient_kernel(ExpertBiasBackwardArgs a, bool vector) {
  __shared__ ColumnSums sums;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kSumPacks * kPack;
  const int expert = static_cast<int>(blockIdx.y), mine = static_cast<int>(threadIdx.x);
  const std::int64_t begin = a.begins[expert], count = a.begins[expert + 1] - begin;
  if (count == 0) return;
  const RowsOfExpert<T> rows{a.d_y, begin, count, vector};
  float total = 0;
  for (unsigned part = 0; part < kSumParts; ++part) {
    const float sum = sum_of_part(rows, first, part, sums);
    total = part == 0 ? sum : total + sum;
    __syncthreads();
  }
  if (mine < kSumPacks * kPack && first + mine < a.d_y.cols)
    a.d_bias[expert * a.d_y.cols + first + mine] += total;
}

/// Each warp has a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) bias_weights_kernel(ExpertBiasWeightsArgs a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, expert = expert_of(a.begins, a.count, row);
  if (expert < 0) return;
  const T* const d = row_of<T>(a.d_tokens, a.row_tokens[row]);
  const float* const bias = a.bias + expert * a.d_tokens.cols;
  float sum = 0.0f;
  for (std::int64_t c = lane; c < a.d_tokens.cols; c += 32) sum = fmaf(bias[c], to_float(d[c]), sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (lane == 0) a.d_weights[row] += sum;
}

}  // namespace

void expert_bias(Stream& stream, const ExpertBiasArgs& a) {
  const std::int64_t count = a.x.rows * ceil_div(a.x.cols, kPack);
  with_type(a.x.dtype, [&](auto type) {
    add_bias_kernel<decltype(type)>
        <<<grid_of(stream, count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(a, packs(a.x));
  });
  octet::cuda::check_launch("expert_bias");
}

void expert_bias_backward(Stream& stream, const ExpertBiasBackwardArgs& a) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(a.d_y.cols, kSumPacks * kPack)),
                    static_cast<unsigned>(a.count));
  with_type(a.d_y.dtype, [&](auto type) {
    bias_gradient_kernel<decltype(type)>
        <<<blocks, kSumThreads, 0, octet::cuda::native(stream)>>>(a, packs(a.d_y));
  });
  octet::cuda::check_launch("expert_bias_backward");
}

void expert_bias_weights(Stream& stream, const ExpertBiasWeightsArgs& a) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, kWarps));
  with_type(a.d_tokens.dtype, [&](auto type) {
    bias_weights_kernel<decltype(type)><<<blocks, kThreads, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("expert_bias_weights");
}

}  // namespace octet::ops::cuda
