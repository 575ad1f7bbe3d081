#include "octet/ops/attention_sinks.h"

#include "cuda/rows.cuh"
#include "kernels.h"
#include "sink_rule.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Each warp has a head of a token.
template <typename T>
__global__ void __launch_bounds__(kThreads) sinks_kernel(AttentionSinksArgs a) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= a.out.rows * a.heads.q_heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t t = item / a.heads.q_heads, h = item % a.heads.q_heads;
  float& lse = a.lse[h * a.out.rows + t];
  const float sink = a.sinks[h], before = lse, factor = sink_factor(sink, before);
  __syncwarp();  // all lanes have read the lse
  if (lane == 0) lse = lse_with_sink(sink, before);
  T* const row = row_of<T>(a.out, t) + h * a.heads.head_dim;
  for (std::int64_t d = lane; d < a.heads.head_dim; d += 32)
    row[d] = from_float<T>(to_float(row[d]) * factor);
}

/// Block (part of the tokens, head): writes the sum of a part. Warps take tokens in turn and are added in
/// order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sink_gradient_kernel(AttentionSinksBackwardArgs a, double* parts) {
  __shared__ double sums[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t h = blockIdx.y, begin = static_cast<std::int64_t>(blockIdx.x) * kSinkTokens;
  const std::int64_t end = begin + kSinkTokens < a.out.rows ? begin + kSinkTokens : a.out.rows;
  double sum = 0;
  for (std::int64_t t = begin + warp; t < end; t += kWarps) {
    const T* const out = row_of<T>(a.out, t) + h * a.heads.head_dim;
    const T* const d_out = row_of<T>(a.d_out, t) + h * a.heads.head_dim;
    float both = 0.0f;
    for (std::int64_t d = lane; d < a.heads.head_dim; d += 32)
      both = fmaf(to_float(out[d]), to_float(d_out[d]), both);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) both += __shfl_xor_sync(0xFFFFFFFFu, both, step);
    if (lane == 0) sum += sink_weight(a.sinks[h], a.lse[h * a.out.rows + t]) * static_cast<double>(both);
  }
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) sum += sums[w];
  parts[h * gridDim.x + blockIdx.x] = sum;
}

/// Thread: a head. Adds the parts in order.
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const double* parts, std::int64_t count, std::int64_t heads, float* d_sinks) {
  const std::int64_t h = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (h >= heads) return;
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += parts[h * count + i];
  d_sinks[h] -= static_cast<float>(sum);
}

}  // namespace

void attention_sinks(Stream& stream, const AttentionSinksArgs& a) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.out.rows * a.heads.q_heads, kWarps));
  with_type(a.out.dtype, [&](auto type) {
    sinks_kernel<decltype(type)><<<blocks, kThreads, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("attention_sinks");
}

void attention_sinks_backward(Stream& stream, const AttentionSinksBackwardArgs& a) {
  const std::int64_t count = ceil_div(a.out.rows, kSinkTokens);
  auto* const parts = static_cast<double*>(a.workspace.data);
  const dim3 blocks(static_cast<unsigned>(count), static_cast<unsigned>(a.heads.q_heads));
  with_type(a.out.dtype, [&](auto type) {
    sink_gradient_kernel<decltype(type)><<<blocks, kThreads, 0, octet::cuda::native(stream)>>>(a, parts);
  });
  octet::cuda::check_launch("attention_sinks_backward");
  const auto of_heads = static_cast<unsigned>(ceil_div(a.heads.q_heads, kThreads));
  add_parts_kernel<<<of_heads, kThreads, 0, octet::cuda::native(stream)>>>(parts, count, a.heads.q_heads,
                                                                           a.d_sinks);
  octet::cuda::check_launch("attention_sinks_backward");
}

}  // namespace octet::ops::cuda
