// Shared code of the attention kernels: square blocks of scores between TILE queries and TILE keys. 256
// threads compute them in fp32 from rows in shared memory. Heads are padded with zeros to DIM. Tiles of
// queries are cut from the flat micro-batch and may span documents. Each row has the start of its document.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "octet/base/dtype.h"
#include "octet/ops/attention.h"

namespace octet::ops::cuda {

inline constexpr int kAttentionThreads = 256;
/// Below every score, and finite, so that the difference of two such values is finite.
inline constexpr float kLowest = -3.0e38f;

/// Tile sizes of a kernel: TILE rows by TILE rows, DIM columns.
template <int TILE_, int DIM_>
struct Cut {
  static constexpr int TILE = TILE_;
  static constexpr int DIM = DIM_;
  static constexpr int PER = TILE / 16;   ///< rows and columns of scores of one thread
  static constexpr int QUADS = DIM / 64;  ///< groups of four output columns of one thread
  static constexpr int ROW = DIM + 4;     ///< row pitch in floats: no bank conflicts among eight lanes
  static constexpr int SCORE_ROW = TILE + 4;
  static constexpr int ROWS_BYTES = TILE * ROW * 4;
  static constexpr int SCORES_BYTES = TILE * SCORE_ROW * 4;
};

__device__ inline float read_value(float x) {
  return x;
}
__device__ inline float read_value(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline void write_value(float& to, float x) {
  to = x;
}
__device__ inline void write_value(__nv_bfloat16& to, float x) {
  to = __float2bfloat16_rn(x);
}

/// The document boundaries of a micro-batch.
struct DocumentMap {
  const std::int32_t* cu_seqlens;
  std::int64_t count;
  /// Returns the end of the last document. Later tokens see no token and are seen by no token.
  __device__ std::int64_t end() const { return count == 0 ? 0 : cu_seqlens[count]; }
  /// Returns the document of a token below end(): the last document that starts at or before it.
  __device__ std::int64_t of(std::int64_t token) const {
    std::int64_t low = 0, high = count;  // cu_seqlens[low] <= token < cu_seqlens[high]
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      if (cu_seqlens[middle] <= token) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
  __device__ std::int64_t start_of(std::int64_t token) const { return cu_seqlens[of(token)]; }
  __device__ std::int64_t end_of(std::int64_t token) const { return cu_seqlens[of(token) + 1]; }
};

/// Parameters and arithmetic of scores.
struct ScoreRule {
  float scale;
  float soft_cap;
  std::int64_t window;
  /// Returns the score of a product, and its derivative with respect to scale * product in `slope`.
  __device__ float score(float dot, float& slope) const {
    const float x = scale * dot;
    slope = 1.0f;
    if (soft_cap <= 0.0f) return x;
    const float t = tanhf(x / soft_cap);
    slope = 1.0f - t * t;
    return soft_cap * t;
  }
  /// Returns the first key that a token sees, if its document starts at `start`.
  __device__ std::int64_t first_key(std::int64_t token, std::int64_t start) const {
    return window > 0 && token - window + 1 > start ? token - window + 1 : start;
  }
};

/// Reads rows [begin, begin + TILE) of a [.., ld] array into shared memory. Rows from `end` on, and columns
/// from head_dim on, become zeros.
template <typename C, typename T>
__device__ void load_rows(float* to, const T* from, std::int64_t ld, std::int64_t begin, std::int64_t end,
                          int head_dim) {
  for (int i = static_cast<int>(threadIdx.x); i < C::TILE * C::DIM; i += kAttentionThreads) {
    const int row = i / C::DIM, column = i % C::DIM;
    const bool inside = begin + row < end && column < head_dim;
    to[row * C::ROW + column] = inside ? read_value(from[(begin + row) * ld + column]) : 0.0f;
  }
}

/// s[r][c] = a[ty + 16 r] · b[tx + 16 c], with tx = thread % 16 and ty = thread / 16.
template <typename C>
__device__ void multiply_rows(const float* a, const float* b, float (&s)[C::PER][C::PER]) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
  for (int r = 0; r < C::PER; ++r) {
#pragma unroll
    for (int c = 0; c < C::PER; ++c) s[r][c] = 0.0f;
  }
#pragma unroll 4
  for (int k = 0; k < C::DIM; k += 4) {
    float4 x[C::PER], y[C::PER];
#pragma unroll
    for (int r = 0; r < C::PER; ++r) {
      x[r] = *reinterpret_cast<const float4*>(a + (ty + 16 * r) * C::ROW + k);
      y[r] = *reinterpret_cast<const float4*>(b + (tx + 16 * r) * C::ROW + k);
    }
#pragma unroll
    for (int r = 0; r < C::PER; ++r) {
#pragma unroll
      for (int c = 0; c < C::PER; ++c) {
        float sum = fmaf(x[r].x, y[c].x, s[r][c]);
        sum = fmaf(x[r].y, y[c].y, sum);
        sum = fmaf(x[r].z, y[c].z, sum);
        s[r][c] = fmaf(x[r].w, y[c].w, sum);
      }
    }
  }
}

/// The part of a [TILE, DIM] result in one thread: rows ty + 16 r, columns 64 q + 4 tx + e.
template <typename C>
struct Sums {
  float at[C::PER][C::QUADS][4];
  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < C::PER; ++r) {
#pragma unroll
      for (int q = 0; q < C::QUADS; ++q) {
#pragma unroll
        for (int e = 0; e < 4; ++e) at[r][q][e] = 0.0f;
      }
    }
  }
  /// Adds w · v, with scores w [TILE, TILE] and rows v [TILE, DIM] in shared memory.
  __device__ void add_multiplied(const float* w, const float* v) {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
    for (int j = 0; j < C::TILE; j += 4) {
      float4 p[C::PER];
#pragma unroll
      for (int r = 0; r < C::PER; ++r) {
        p[r] = *reinterpret_cast<const float4*>(w + (ty + 16 * r) * C::SCORE_ROW + j);
      }
#pragma unroll
      for (int q = 0; q < C::QUADS; ++q) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float4 x = *reinterpret_cast<const float4*>(v + (j + e) * C::ROW + 64 * q + 4 * tx);
#pragma unroll
          for (int r = 0; r < C::PER; ++r) {
            const float weight = e == 0 ? p[r].x : e == 1 ? p[r].y : e == 2 ? p[r].z : p[r].w;
            at[r][q][0] = fmaf(weight, x.x, at[r][q][0]);
            at[r][q][1] = fmaf(weight, x.y, at[r][q][1]);
            at[r][q][2] = fmaf(weight, x.z, at[r][q][2]);
            at[r][q][3] = fmaf(weight, x.w, at[r][q][3]);
          }
        }
      }
    }
  }
  /// Writes rows [begin, ..) below `end` to a [.., ld] array, multiplied by factor(r).
  template <typename T, typename Factor>
  __device__ void write(T* to, std::int64_t ld, std::int64_t begin, std::int64_t end, int head_dim,
                        Factor factor) const {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
    for (int r = 0; r < C::PER; ++r) {
      const std::int64_t row = begin + ty + 16 * r;
      if (row >= end) continue;
      const float f = factor(r);
#pragma unroll
      for (int q = 0; q < C::QUADS; ++q) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = 64 * q + 4 * tx + e;
          if (column < head_dim) write_value(to[row * ld + column], at[r][q][e] * f);
        }
      }
    }
  }
};

}  // namespace octet::ops::cuda
