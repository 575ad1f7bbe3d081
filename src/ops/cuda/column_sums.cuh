// Column sums over the rows of matrices, in an order that depends only on shapes.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "cuda/rows.cuh"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

// Eight parts share the rows of 64 columns. Packs of a row are processed by neighbouring threads. Each thread
// adds its rows, 64 at a time, so that long columns are as accurate as short columns. Then threads are added
// in order, then parts. A part is a block of a cluster, or, without clusters, an iteration of the only block.
inline constexpr int kSumThreads = 256;
inline constexpr unsigned kSumParts = 8;  // the largest cluster size that all GPUs with clusters support
inline constexpr int kSumPacks = 8;
inline constexpr int kSumRows = kSumThreads / kSumPacks;
using ColumnSums = float[kSumRows][kSumPacks * kPack];

/// Returns the sum of the rows of a part in column first + threadIdx.x, for threads with a column. The sum is
/// also stored in sums[0].
template <typename Terms>
__device__ float sum_of_part(const Terms& terms, std::int64_t first, unsigned part, ColumnSums& sums) {
  const int pack = threadIdx.x % kSumPacks, lane = threadIdx.x / kSumPacks;
  const std::int64_t col = first + pack * kPack;
  constexpr std::int64_t step = std::int64_t{kSumParts} * kSumRows;
  float all[kPack] = {};
  if (col < terms.cols()) {
    const PackAt at = pack_at(col, terms.cols(), terms.vector);
    for (std::int64_t row = std::int64_t{part} * kSumRows + lane; row < terms.rows();) {
      float sum[kPack] = {};
#pragma unroll 4
      for (int i = 0; i < 64; ++i, row += step) {
        if (row >= terms.rows()) break;
        float x[kPack];
        terms.load(row, col, at, x);
#pragma unroll
        for (int j = 0; j < kPack; ++j) sum[j] += x[j];
      }
#pragma unroll
      for (int j = 0; j < kPack; ++j) all[j] += sum[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) sums[lane][pack * kPack + j] = all[j];
  __syncthreads();
  const int mine = threadIdx.x;
  float total = 0;
  if (mine < kSumPacks * kPack) {
    for (int l = 0; l < kSumRows; ++l) total += sums[l][mine];
    sums[0][mine] = total;  // no other thread reads this column
  }
  return total;
}

/// Launched in clusters of kSumParts blocks.
template <typename Terms>
__global__ void __launch_bounds__(kSumThreads) column_sums_kernel(Terms terms) {
#if __CUDA_ARCH__ >= 900
  __shared__ ColumnSums sums;
  const auto cluster = cooperative_groups::this_cluster();
  const std::int64_t first = blockIdx.x / kSumParts * static_cast<std::int64_t>(kSumPacks * kPack);
  const int mine = threadIdx.x;
  float total = sum_of_part(terms, first, cluster.block_rank(), sums);
  cluster.sync();
  if (cluster.block_rank() == 0 && mine < kSumPacks * kPack && first + mine < terms.cols()) {
    for (unsigned block = 1; block < kSumParts; ++block) {
      total += cluster.map_shared_rank(&sums[0][0], block)[mine];
    }
    terms.add(first + mine, total);
  }
  cluster.sync();  // other blocks read this shared memory up to here
#endif
}

/// Computes the same sums with one block per group of columns.
template <typename Terms>
__global__ void __launch_bounds__(kSumThreads) column_sums_alone_kernel(Terms terms) {
  __shared__ ColumnSums sums;
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kSumPacks * kPack);
  const int mine = threadIdx.x;
  float total = 0;
  for (unsigned part = 0; part < kSumParts; ++part) {
    const float sum = sum_of_part(terms, first, part, sums);
    total = part == 0 ? sum : total + sum;
    __syncthreads();
  }
  if (mine < kSumPacks * kPack && first + mine < terms.cols()) terms.add(first + mine, total);
}

/// Sums the columns of `terms`, which has rows(), cols(), vector (packs move as a whole), load(row, column,
/// PackAt, values) and add(column, sum).
template <typename Terms>
void sum_columns(cudaStream_t stream, const Terms& terms, const char* op) {
  const auto columns = static_cast<unsigned>(ceil_div(terms.cols(), kSumPacks * kPack));
  if (octet::cuda::code_here() < 90) {
    column_sums_alone_kernel<Terms><<<columns, kSumThreads, 0, stream>>>(terms);
    return octet::cuda::check_launch(op);
  }
  cudaLaunchAttribute clusters{};
  clusters.id = cudaLaunchAttributeClusterDimension;
  clusters.val.clusterDim = {kSumParts, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kSumParts * columns);
  config.blockDim = dim3(kSumThreads);
  config.stream = stream;
  config.attrs = &clusters;
  config.numAttrs = 1;
  octet::cuda::check(cudaLaunchKernelEx(&config, column_sums_kernel<Terms>, terms), op);
}

}  // namespace octet::ops::cuda
