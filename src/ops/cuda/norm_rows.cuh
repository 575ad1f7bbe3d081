// Shapes of the kernels of norms. A block owns a row, which stays in registers.
#pragma once

#include <type_traits>

#include "cuda/rows.cuh"
#include "octet/base/error.h"

namespace octet::ops::cuda {

inline constexpr int kMaxNormThreads = 512;
inline constexpr int kMaxNormPacks = 8;

/// Threads of a block, and packs per thread, for rows of `cols` elements.
struct NormShape {
  int threads = 0;
  int packs = 0;
};
inline NormShape norm_shape(std::int64_t cols, const char* too_wide) {
  const std::int64_t packs_in_row = ceil_div(cols, kPack);
  octet::check(packs_in_row <= static_cast<std::int64_t>(kMaxNormThreads) * kMaxNormPacks, too_wide);
  NormShape shape;
  shape.packs = 1;
  while (ceil_div(packs_in_row, shape.packs) > kMaxNormThreads) shape.packs *= 2;
  shape.threads = static_cast<int>(ceil_div(ceil_div(packs_in_row, shape.packs), kWarp)) * kWarp;
  return shape;
}

/// Warps of a block take partial sums of 32 columns in turn. Their sums are added in warp order.
inline constexpr int kSumWarps = 16;
/// Adds 32 columns of partial sums [blocks, hidden] to `to`, starting at column 32 * piece. Called by all
/// threads of a block of kSumWarps warps.
__device__ inline void add_norm_sums(const float* partial, std::int64_t blocks, std::int64_t hidden,
                                     float* to, std::int64_t piece) {
  __shared__ float sums[kSumWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t c = piece * kWarp + lane;
  float sum = 0;
  if (c < hidden) {
#pragma unroll 8
    for (std::int64_t b = warp; b < blocks; b += kSumWarps) sum += partial[b * hidden + c];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= hidden) return;
  for (int w = 1; w < kSumWarps; ++w) sum += sums[w][lane];
  to[c] += sum;
}
/// Adds partial sums [blocks, hidden] to `to`. Launched with a block for each 32 columns.
static __global__ void __launch_bounds__(kSumWarps* kWarp)
    add_norm_sums_kernel(const float* partial, std::int64_t blocks, std::int64_t hidden, float* to) {
  add_norm_sums(partial, blocks, hidden, to, blockIdx.x);
}

}  // namespace octet::ops::cuda
