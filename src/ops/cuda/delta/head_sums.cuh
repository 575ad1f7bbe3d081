// Sums of a chunk and value head that become gradients of decays and betas.
#pragma once

#include "cuda/delta/chunks.cuh"

namespace octet::ops::cuda {

/// Sums of rows. Each part of the columns is summed by another warp. kPast and kQueries: gradients of c
/// through the state before the chunk, by keys and by queries. kNext: gradients through the state after it.
enum RowSum { kPast, kQueries, kNext, kBeta, kSquares, kRowSums };
template <int PARTS>
using RowSums = float[PARTS][kChunk];

/// Shared arrays of sums and factors of a head.
template <int PARTS>
struct HeadSums {
  RowSums<PARTS> rows[kRowSums];
  RowSums<PARTS> before[2];  ///< products of gradients with queries and keys, of the heads before
  float columns[4][kChunk];  ///< column sums of the squares, by rows of warps
  float grown[kChunk];       ///< exp(c)
  float shrunk[kChunk];      ///< exp(c_n - c)
  float states[4 * PARTS];   ///< sums of S · dS by warp
};

template <int PARTS>
__device__ inline float sum_of_parts(const RowSums<PARTS>& sums, int row) {
  float sum = sums[0][row];
#pragma unroll
  for (int part = 1; part < PARTS; ++part) sum += sums[part][row];
  return sum;
}
/// Adds the lanes of each row and stores the sums of a warp's rows.
template <int PARTS>
__device__ inline void store_row_sums(RowSums<PARTS>& to, const float (&sums)[2], int row0, int part) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = sums[half];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (threadIdx.x % 4 == 0) to[part][lane_row(row0, half)] = sum;
  }
}
/// Sums the products of gradients and a tile of queries or keys by rows.
template <int NT, typename T>
__device__ inline void add_row_dots(float (&sums)[2], float (&d)[NT][4], const T* tile, int pitch, int row0,
                                    int col0) {
  each_pair<NT>(d, col0, [&](int half, int col, float x, float y) {
    const float2 of = load_pair(tile + lane_row(row0, half) * pitch + col);
    sums[half] = fmaf(x, of.x, sums[half]);
    sums[half] = fmaf(y, of.y, sums[half]);
  });
}

/// Writes the gradients of decays and betas of a head. Called by warp 0 after a barrier. The decay of a token
/// is a factor between earlier tokens and the token or later ones. So its gradient is a sum over the token
/// and later ones, and for the state after the chunk a sum over earlier tokens. If not `exact`, the sums of
/// queries and keys are totals, and keys have both parts.
template <bool exact, int PARTS>
__device__ inline void write_head(const DeltaRuleBackwardArgs& a, const HeadSums<PARTS>& sums,
                                  const DeltaToken* token, const ChunkPlace& chunk, std::int64_t head) {
  constexpr int parts = kChunk / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float from[parts], next[parts];
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    const int i = part * kWarp + lane;
    const auto sum = [&](const RowSums<PARTS>& rows) { return sum_of_parts<PARTS>(rows, i); };
    const float of_columns =
        (sums.columns[0][i] + sums.columns[1][i]) + (sums.columns[2][i] + sums.columns[3][i]);
    float of_queries = sum(sums.rows[kQueries]);
    next[part] = sum(sums.rows[kNext]);
    if constexpr (!exact) {
      of_queries -= sum(sums.before[0]);
      next[part] -= sum(sums.before[1]) + sum(sums.rows[kPast]);
    }
    from[part] = (sum(sums.rows[kSquares]) - of_columns) + (of_queries + sum(sums.rows[kPast]));
    if (i < chunk.tokens) {
      a.d_beta[(chunk.first + i) * a.heads.value_heads + head] = sum(sums.rows[kBeta]);
    }
  }
  float states = 0.0f;
  for (int w = 0; w < 4 * PARTS; ++w) states += sums.states[w];
  states *= decay_between(token[chunk.tokens - 1].decay, 0.0);
  float later = 0.0f, earlier = 0.0f;
#pragma unroll
  for (int part = parts - 1; part >= 0; --part) {
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const float other = __shfl_down_sync(0xFFFFFFFFu, from[part], offset);
      if (lane + offset < kWarp) from[part] += other;
    }
    from[part] += later;
    later = __shfl_sync(0xFFFFFFFFu, from[part], 0);
  }
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    float sum = next[part];
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const float other = __shfl_up_sync(0xFFFFFFFFu, sum, offset);
      if (lane >= offset) sum += other;
    }
    const float before = __shfl_up_sync(0xFFFFFFFFu, sum, 1);
    const int i = part * kWarp + lane;
    if (i < chunk.tokens) {
      a.d_log_decay[(chunk.first + i) * a.heads.value_heads + head] =
          from[part] + (states + (lane == 0 ? earlier : earlier + before));
    }
    earlier += __shfl_sync(0xFFFFFFFFu, sum, kWarp - 1);
  }
}

}  // namespace octet::ops::cuda
