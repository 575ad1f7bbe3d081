// A block for each row: reads it once for the largest logit, and once more where the sum is wanted.
#include <cmath>

#include "octet/device/cuda.h"
#include "octet/ops/best_tokens.h"

namespace octet::ops::cuda {

void best_tokens(Stream& stream, const BestTokensArgs& args);

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

struct Found {
  float logit;
  std::int32_t id;
  /// Whether another one is to be taken in place of this.
  __device__ bool yields_to(const Found& other) const {
    const bool nan = isnan(logit), other_nan = isnan(other.logit);
    if (nan || other_nan) return nan == other_nan ? other.id < id : other_nan;
    return other.logit > logit || (other.logit == logit && other.id < id);
  }
};

__device__ Found better(const Found& a, const Found& b) {
  return a.yields_to(b) ? b : a;
}

__device__ Found best_of_warp(Found found) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Found other{__shfl_xor_sync(0xFFFFFFFFu, found.logit, step),
                      __shfl_xor_sync(0xFFFFFFFFu, found.id, step)};
    found = better(found, other);
  }
  return found;
}

/// The same order of additions in every run.
__device__ double sum_of_warp(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

__global__ void __launch_bounds__(kThreads)
    best_tokens_kernel(const float* logits, std::int64_t ld, std::int64_t vocabulary, bool normalizers,
                       BestToken* out) {
  __shared__ Found found_by[kWarps];
  __shared__ double sums[kWarps];
  const float* row = logits + blockIdx.x * ld;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Threads behind the end look at the first token like everybody else.
  Found found{row[0], 0};
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kThreads) {
    found = better(found, {row[i], static_cast<std::int32_t>(i)});
  }
  found = best_of_warp(found);
  if (lane == 0) found_by[warp] = found;
  __syncthreads();
  found = best_of_warp(found_by[lane % kWarps]);
  double normalizer = 0.0;
  if (normalizers) {
    const auto highest = static_cast<double>(found.logit);
    double sum = 0.0;
    for (std::int64_t i = threadIdx.x; i < vocabulary; i += kThreads) {
      sum += exp(static_cast<double>(row[i]) - highest);
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    normalizer = highest + log(sum_of_warp(sums[lane % kWarps]));
  }
  if (threadIdx.x == 0) out[blockIdx.x] = {.normalizer = normalizer, .logit = found.logit, .id = found.id};
}

static_assert(kWarps == 32, "every lane has the result of one warp");

}  // namespace

void best_tokens(Stream& stream, const BestTokensArgs& args) {
  cudaStream_t native = octet::cuda::native(stream);
  best_tokens_kernel<<<static_cast<unsigned>(args.logits.rows), kThreads, 0, native>>>(
      static_cast<const float*>(args.logits.data), args.logits.ld, args.logits.cols, args.normalizers,
      args.out);
  octet::cuda::check_launch("best_tokens");
}

}  // namespace octet::ops::cuda
