#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

/// The data of one head of one token for a warp. A lane processes the pairs (i, i + half) with i = lane, lane
/// + 32, …
struct HeadAt {
  std::int64_t head = 0;
  bool query = false;
  std::int64_t half = 0;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  const float* weight = nullptr;
};

template <typename Args>
__device__ inline HeadAt head_at(const Args& a, std::int64_t row, std::int64_t head) {
  const std::int64_t half = a.heads.head_dim / 2;
  const bool query = head < a.heads.q_heads;
  return {head,
          query,
          half,
          a.cosine + a.positions[row] * half,
          a.sine + a.positions[row] * half,
          query ? a.q_weight : a.k_weight};
}

// A warp processes one head at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) normed_rope_kernel(NormedRopeArgs a) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t dim = a.heads.head_dim;
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
  const int lane = threadIdx.x % kWarp;
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t item = blockIdx.x * static_cast<std::int64_t>(kWarps) + threadIdx.x / kWarp;
       item < a.qkv.rows * heads; item += stride) {
    const std::int64_t row = item / heads;
    const HeadAt at = head_at(a, row, item % heads);
    T* x = row_of<T>(a.qkv, row) + at.head * dim;
    T* kept = a.raw.data ? row_of<T>(a.raw, row) + at.head * dim : nullptr;
    float squares = 0;
    for (std::int64_t i = lane; i < dim; i += kWarp) {
      const T value = x[i];
      if (kept) kept[i] = value;
      squares += to_float(value) * to_float(value);
    }
    squares = warp_reduce(squares, Plus{});
    const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, static_cast<float>(dim)) + a.eps));
    if (a.rstd && lane == 0) a.rstd[item] = rstd;
    for (std::int64_t i = lane; i < at.half; i += kWarp) {
      const float first = to_float(x[i]) * rstd * (one + at.weight[i]);
      const float second = to_float(x[at.half + i]) * rstd * (one + at.weight[at.half + i]);
      const float c = at.cosine[i], s = at.sine[i];
      x[i] = from_float<T>(first * c - second * s);
      x[at.half + i] = from_float<T>(second * c + first * s);
    }
  }
}

// A block owns `block` tokens. Its warps process heads in turn and sum the gradients of the weights
// separately in shared memory. The sums of the warps are added in warp order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    normed_rope_backward_kernel(NormedRopeBackwardArgs a, std::int64_t block, float* partial) {
  extern __shared__ float sums[];  // [kWarps][2 * head_dim]
  const std::int64_t dim = a.heads.head_dim;
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  float* own = sums + warp * 2 * dim;
  if (partial) {
    for (std::int64_t i = lane; i < 2 * dim; i += kWarp) own[i] = 0.0f;
    __syncwarp();
  }
  const std::int64_t begin = blockIdx.x * block;
  const std::int64_t end = begin + block < a.d_qkv.rows ? begin + block : a.d_qkv.rows;
  for (std::int64_t item = begin * heads + warp; item < end * heads; item += kWarps) {
    const std::int64_t row = item / heads;
    const HeadAt at = head_at(a, row, item % heads);
    T* d = row_of<T>(a.d_qkv, row) + at.head * dim;
    const T* raw = row_of<T>(a.raw, row) + at.head * dim;
    const float rstd = a.rstd[item];
    float* own_sum = own + (at.query ? 0 : dim);
    // Calls f(i, dy, xhat, j, dy, xhat) for the pairs of this lane: dy is rotated back, and xhat is the
    // normalized input.
    const auto each = [&](auto f) {
      for (std::int64_t i = lane; i < at.half; i += kWarp) {
        const float first = to_float(d[i]), second = to_float(d[at.half + i]);
        const float c = at.cosine[i], s = at.sine[i];
        f(i, first * c + second * s, to_float(raw[i]) * rstd, at.half + i, second * c - first * s,
          to_float(raw[at.half + i]) * rstd);
      }
    };
    float dot = 0;
    each([&](std::int64_t i, float dy0, float x0, std::int64_t j, float dy1, float x1) {
      if (partial) {
        own_sum[i] += dy0 * x0;
        own_sum[j] += dy1 * x1;
      }
      dot += dy0 * (one + at.weight[i]) * x0 + dy1 * (one + at.weight[j]) * x1;
    });
    const float mean = __fdiv_rn(warp_reduce(dot, Plus{}), static_cast<float>(dim));
    each([&](std::int64_t i, float dy0, float x0, std::int64_t j, float dy1, float x1) {
      d[i] = from_float<T>(rstd * (dy0 * (one + at.weight[i]) - x0 * mean));
      d[j] = from_float<T>(rstd * (dy1 * (one + at.weight[j]) - x1 * mean));
    });
  }
  if (!partial) return;
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < 2 * dim; i += kThreads) {
    float sum = sums[i];
    for (int w = 1; w < kWarps; ++w) sum += sums[w * 2 * dim + i];
    partial[blockIdx.x * 2 * dim + i] = sum;
  }
}

__global__ void add_weight_sums_kernel(const float* partial, std::int64_t blocks, std::int64_t dim,
                                       float* d_q, float* d_k) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i >= 2 * dim) return;
  float* to = i < dim ? d_q : d_k;
  if (!to) return;
  float sum = 0;
  for (std::int64_t b = 0; b < blocks; ++b) sum += partial[b * 2 * dim + i];
  to[i < dim ? i : i - dim] += sum;
}

}  // namespace

void normed_rope(Stream& stream, const NormedRopeArgs& a) {
  const std::int64_t items = a.qkv.rows * (a.heads.q_heads + a.heads.kv_heads);
  if (items == 0) return;
  with_type(a.qkv.dtype, [&](auto type) {
    launch_early_if(few_rows(a.qkv.rows), normed_rope_kernel<decltype(type)>,
                    dim3(grid_of(stream, items, kWarps)), kThreads, 0, octet::cuda::native(stream),
                    "normed_rope", a);
  });
}

void normed_rope_backward(Stream& stream, const NormedRopeBackwardArgs& a) {
  const std::int64_t rows = a.d_qkv.rows, dim = a.heads.head_dim;
  if (rows == 0) return;
  const std::int64_t block = rms_norm_backward_block(rows);
  const std::int64_t blocks = ceil_div(rows, block);
  auto* partial = a.d_q_weight || a.d_k_weight ? static_cast<float*>(a.workspace.data) : nullptr;
  const std::size_t shared = partial ? static_cast<std::size_t>(kWarps * 2 * dim) * sizeof(float) : 0;
  with_type(a.d_qkv.dtype, [&](auto type) {
    auto* kernel = normed_rope_backward_kernel<decltype(type)>;
    // Heads of more than 768 dimensions need more shared memory than the default.
    octet::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "normed_rope_backward: shared memory for the sums of a head this large");
    kernel<<<static_cast<unsigned>(blocks), kThreads, shared, octet::cuda::native(stream)>>>(a, block,
                                                                                             partial);
  });
  octet::cuda::check_launch("normed_rope_backward");
  if (partial) {
    add_weight_sums_kernel<<<static_cast<unsigned>(ceil_div(2 * dim, 128)), 128, 0,
                             octet::cuda::native(stream)>>>(partial, blocks, dim, a.d_q_weight, a.d_k_weight);
    octet::cuda::check_launch("normed_rope_backward");
  }
  if (a.quantize.row || a.quantize.transposed || a.quantize.amax) {
    quantize(stream, QuantizeArgs{a.d_qkv, a.quantize});
  }
}

}  // namespace octet::ops::cuda
