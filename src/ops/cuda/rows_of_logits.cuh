// Reductions of a row of logits by a block of 1024 threads. All kernels that read logits share this code, so
// that they get the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace octet::ops::cuda {

inline constexpr int kLogitThreads = 1024;
inline constexpr int kLogitWarps = kLogitThreads / 32;
static_assert(kLogitWarps == 32, "every lane has the result of one warp");

/// A token and its logit.
struct FoundLogit {
  float logit;
  std::int32_t id;
  /// True if `other` takes precedence.
  __device__ bool yields_to(const FoundLogit& other) const {
    const bool nan = isnan(logit), other_nan = isnan(other.logit);
    if (nan || other_nan) return nan == other_nan ? other.id < id : other_nan;
    return other.logit > logit || (other.logit == logit && other.id < id);
  }
};

__device__ inline FoundLogit better(const FoundLogit& a, const FoundLogit& b) {
  return a.yields_to(b) ? b : a;
}

__device__ inline FoundLogit best_of_warp(FoundLogit found) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const FoundLogit other{__shfl_xor_sync(0xFFFFFFFFu, found.logit, step),
                           __shfl_xor_sync(0xFFFFFFFFu, found.id, step)};
    found = better(found, other);
  }
  return found;
}

/// Sums over a warp, with the same order of additions in every run.
__device__ inline double sum_of_warp(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

/// Returns the largest logit of a row (the first of equal ones) in all threads. `of_warps`: shared, one entry
/// per warp.
__device__ inline FoundLogit best_of_row(const float* row, std::int64_t vocabulary, FoundLogit* of_warps) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Threads after the end start with the first token, like all threads.
  FoundLogit found{row[0], 0};
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kLogitThreads) {
    found = better(found, {row[i], static_cast<std::int32_t>(i)});
  }
  found = best_of_warp(found);
  if (lane == 0) of_warps[warp] = found;
  __syncthreads();
  return best_of_warp(of_warps[lane]);
}

/// Returns the sum of exp(logit / temperature - largest / temperature) over a row in all threads. A
/// temperature of 1 changes no bits. `of_warps`: as above; its previous contents must not be in use.
__device__ inline double sum_of_row(const float* row, std::int64_t vocabulary, float largest,
                                    double temperature, double* of_warps) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const double highest = static_cast<double>(largest) / temperature;
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kLogitThreads) {
    sum += exp(static_cast<double>(row[i]) / temperature - highest);
  }
  sum = sum_of_warp(sum);
  if (lane == 0) of_warps[warp] = sum;
  __syncthreads();
  return sum_of_warp(of_warps[lane]);
}

/// Returns the log of the sum of exponentials of a row.
__device__ inline double normalizer_of_row(const float* row, std::int64_t vocabulary, float largest,
                                           double* of_warps) {
  return static_cast<double>(largest) + log(sum_of_row(row, vocabulary, largest, 1.0, of_warps));
}

}  // namespace octet::ops::cuda
