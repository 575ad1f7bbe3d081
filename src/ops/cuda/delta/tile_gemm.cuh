// GEMMs of a warp on tiles in shared memory: bf16 on tensor cores, f32 with fused multiply-adds. Sums are in
// fp32. Both types distribute results over the lanes in the same way, so kernels are written once.
#pragma once

#include <cstdint>

#include "cuda/mma.cuh"
#include "cuda/rows.cuh"

namespace octet::ops::cuda {

/// Layout of an operand in shared memory. rows: [row or column of the result][depth], so neighbouring
/// elements differ in depth. depth: [depth][row or column of the result].
enum class Stored { rows, depth };

/// Elements between two rows of a tile with `cols` columns. Rows start on 16-byte boundaries, in different
/// banks.
template <typename T>
constexpr int tile_pitch(int cols) {
  return cols + 16 / static_cast<int>(sizeof(T));
}

/// Shared addresses of an operand of tensor cores, for the lanes of a warp.
template <Stored STORED>
struct RowLoader {
  unsigned first;
  int ld;
  __device__ RowLoader(const __nv_bfloat16* a, int lda) : ld(lda) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    first = shared_address(STORED == Stored::rows ? a + lane % 16 * ld + lane / 16 * 8
                                                  : a + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8);
  }
  /// Loads 16 rows and 16 elements from depth k on.
  __device__ void load(std::uint32_t (&to)[4], int k) const {
    if constexpr (STORED == Stored::rows) {
      load_matrices(to, first + static_cast<unsigned>(2 * k));
    } else {
      load_transposed(to, first + static_cast<unsigned>(2 * k * ld));
    }
  }
};
template <Stored STORED>
struct ColumnLoader {
  unsigned first;
  int ld;
  __device__ ColumnLoader(const __nv_bfloat16* b, int ldb) : ld(ldb) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    first = shared_address(STORED == Stored::rows ? b + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8
                                                  : b + (lane % 8 + lane / 8 % 2 * 8) * ld + lane / 16 * 8);
  }
  /// Loads 16 columns from column n on, and 16 elements from depth k on.
  __device__ void load(std::uint32_t (&to)[4], int n, int k) const {
    if constexpr (STORED == Stored::rows) {
      load_matrices(to, first + static_cast<unsigned>(2 * (n * ld + k)));
    } else {
      load_transposed(to, first + static_cast<unsigned>(2 * (k * ld + n)));
    }
  }
};

/// d += a · b for a tile of 16 rows and NT tiles of 8 columns, over DEPTH elements. `a` points to the first
/// row, `b` to the first column. A lane has rows lane / 4 and lane / 4 + 8, and columns 2 (lane % 4) and the
/// next of a tile.
template <int DEPTH, Stored A, Stored B, int NT>
__device__ inline void add_gemm(float (&d)[NT][4], const __nv_bfloat16* a, int lda, const __nv_bfloat16* b,
                                int ldb) {
  static_assert(NT % 2 == 0 && DEPTH % 16 == 0);
  const RowLoader<A> of_a(a, lda);
  const ColumnLoader<B> of_b(b, ldb);
#pragma unroll 4
  for (int k = 0; k < DEPTH; k += 16) {
    std::uint32_t rows[4];
    of_a.load(rows, k);
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      std::uint32_t cols[4];
      of_b.load(cols, n * 8, k);
      multiply_add(d[n], rows, cols[0], cols[1]);
      multiply_add(d[n + 1], rows, cols[2], cols[3]);
    }
  }
}

/// d0 += a0 · b and d1 += a1 · b, which share the reads of b.
template <int DEPTH, Stored A, Stored B, int NT>
__device__ inline void add_two_gemms(float (&d0)[NT][4], float (&d1)[NT][4], const __nv_bfloat16* a0,
                                     const __nv_bfloat16* a1, int lda, const __nv_bfloat16* b, int ldb) {
  static_assert(NT % 2 == 0 && DEPTH % 16 == 0);
  const RowLoader<A> of_a0(a0, lda), of_a1(a1, lda);
  const ColumnLoader<B> of_b(b, ldb);
#pragma unroll 4
  for (int k = 0; k < DEPTH; k += 16) {
    std::uint32_t rows0[4], rows1[4];
    of_a0.load(rows0, k);
    of_a1.load(rows1, k);
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      std::uint32_t cols[4];
      of_b.load(cols, n * 8, k);
      multiply_add(d0[n], rows0, cols[0], cols[1]);
      multiply_add(d0[n + 1], rows0, cols[2], cols[3]);
      multiply_add(d1[n], rows1, cols[0], cols[1]);
      multiply_add(d1[n + 1], rows1, cols[2], cols[3]);
    }
  }
}
template <int DEPTH, Stored A, Stored B, int NT>
__device__ inline void add_gemm(float (&d)[NT][4], const float* a, int lda, const float* b, int ldb) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane / 4, col = lane % 4 * 2;
  const int a_row = A == Stored::rows ? lda : 1, a_depth = A == Stored::rows ? 1 : lda;
  const int b_col = B == Stored::rows ? ldb : 1, b_depth = B == Stored::rows ? 1 : ldb;
#pragma unroll 2
  for (int k = 0; k < DEPTH; ++k) {
    const float x = a[row * a_row + k * a_depth], y = a[(row + 8) * a_row + k * a_depth];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const float u = b[(n * 8 + col) * b_col + k * b_depth];
      const float v = b[(n * 8 + col + 1) * b_col + k * b_depth];
      d[n][0] = fmaf(x, u, d[n][0]);
      d[n][1] = fmaf(x, v, d[n][1]);
      d[n][2] = fmaf(y, u, d[n][2]);
      d[n][3] = fmaf(y, v, d[n][3]);
    }
  }
}
template <int DEPTH, Stored A, Stored B, int NT>
__device__ inline void add_two_gemms(float (&d0)[NT][4], float (&d1)[NT][4], const float* a0, const float* a1,
                                     int lda, const float* b, int ldb) {
  add_gemm<DEPTH, A, B>(d0, a0, lda, b, ldb);
  add_gemm<DEPTH, A, B>(d1, a1, lda, b, ldb);
}

/// Adds a · b to MT tiles of 16 rows. The rows of `a` are its columns in shared memory.
template <int DEPTH, int MT, int NT, typename T>
__device__ inline void add_tall_gemm(float (&d)[MT][NT][4], const T* a, int lda, const T* b, int ldb) {
  if constexpr (MT == 1) {
    add_gemm<DEPTH, Stored::depth, Stored::depth>(d[0], a, lda, b, ldb);
  } else {
#pragma unroll
    for (int m = 0; m < MT; m += 2) {
      add_two_gemms<DEPTH, Stored::depth, Stored::depth>(d[m], d[m + 1], a + m * 16, a + m * 16 + 16, lda, b,
                                                         ldb);
    }
  }
}

/// The rows of a lane in a tile: rows of `half` 0 and 1.
__device__ inline int lane_row(int row0, int half) {
  return row0 + static_cast<int>(threadIdx.x) % kWarp / 4 + half * 8;
}
/// Calls f(half, column, x, y) for each pair of neighbouring elements of a lane. Tiles start at column col0.
template <int NT, typename F>
__device__ inline void each_pair(float (&d)[NT][4], int col0, F f) {
  const int col = col0 + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    f(0, col + n * 8, d[n][0], d[n][1]);
    f(1, col + n * 8, d[n][2], d[n][3]);
  }
}

/// Stores two neighbouring elements, the first at an even place.
__device__ inline void store_pair(__nv_bfloat16* to, float x, float y) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
}
__device__ inline void store_pair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = make_float2(x, y);
}
__device__ inline float2 load_pair(const __nv_bfloat16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}
__device__ inline float2 load_pair(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}

template <int MT, int NT>
__device__ inline void scale_tiles(float (&d)[MT][NT][4], float factor) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) d[m][n][e] *= factor;
    }
  }
}
/// Stores tiles of a warp to shared memory, from (row0, col0) on.
template <int MT, int NT, typename T>
__device__ inline void store_tiles(T* to, int pitch, int row0, int col0, float (&d)[MT][NT][4]) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    each_pair<NT>(d[m], col0, [&](int half, int col, float x, float y) {
      store_pair(to + lane_row(row0 + m * 16, half) * pitch + col, x, y);
    });
  }
}

/// Part of a matrix in global memory: `rows` rows and `cols` columns, a multiple of 8.
template <typename T>
struct Part {
  const T* data = nullptr;
  std::int64_t ld = 0;
  int rows = 0, cols = 0;
  bool vector = false;  ///< rows start on 16-byte boundaries
};

/// Starts copies of a part to a tile of ROWS x COLS in shared memory. Elements outside the part become zero.
/// The caller ends and waits for the copies. Without `vector`, the copies are complete after a barrier.
template <int ROWS, int COLS, int THREADS, typename T>
__device__ inline void copy_part(T* to, const Part<T>& from) {
  constexpr int each = 16 / static_cast<int>(sizeof(T)), across = COLS / each;
  constexpr int pitch = tile_pitch<T>(COLS);
  static_assert(COLS % each == 0);
#pragma unroll
  for (int turn = 0; turn < (ROWS * across + THREADS - 1) / THREADS; ++turn) {
    const int i = static_cast<int>(threadIdx.x) + turn * THREADS;
    if (ROWS * across % THREADS != 0 && i >= ROWS * across) break;
    const int row = i / across, col = i % across * each;
    T* const at = to + row * pitch + col;
    const bool inside = row < from.rows && col < from.cols;
    if (!inside) {
      *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
    } else if (from.vector) {
      copy_16(at, from.data + row * from.ld + col);
    } else {
#pragma unroll
      for (int e = 0; e < each; ++e) at[e] = from.data[row * from.ld + col + e];
    }
  }
}

/// Writes the first rows and columns of a tile to global memory. `vector`: rows there start on 16-byte
/// boundaries.
template <int ROWS, int COLS, int THREADS, typename T>
__device__ inline void write_part(T* to, std::int64_t ld, int rows, int cols, bool vector, const T* tile) {
  constexpr int each = 16 / static_cast<int>(sizeof(T)), across = COLS / each;
  constexpr int pitch = tile_pitch<T>(COLS);
  for (int i = static_cast<int>(threadIdx.x); i < ROWS * across; i += THREADS) {
    const int row = i / across, col = i % across * each;
    if (row >= rows || col >= cols) continue;
    const T* const at = tile + row * pitch + col;
    if (vector) {
      *reinterpret_cast<uint4*>(to + row * ld + col) = *reinterpret_cast<const uint4*>(at);
    } else {
#pragma unroll
      for (int e = 0; e < each; ++e) to[row * ld + col + e] = at[e];
    }
  }
}

}  // namespace octet::ops::cuda
