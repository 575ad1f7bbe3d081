#include "block_scale.h"
#include "cuda/row_quantize.cuh"
#include "cuda/tiles.cuh"
#include "octet/ops/block_quantize.h"

namespace octet::ops::cuda {
namespace {

constexpr int kSide = static_cast<int>(kScaleBlock);
static_assert(kSide == kTallRows && kSide == 2 * kTile);

/// A square of 128 x 128 elements. A thread has four rows of one pack in each half of the square.
struct Place {
  int pack = static_cast<int>(threadIdx.x) % (kTile / kPack);
  int group = static_cast<int>(threadIdx.x) / (kTile / kPack);
  __device__ int row(int i) const { return group * kTallGroup + i; }
  __device__ int col(int half) const { return half * kTile + pack * kPack; }
};

using Values = float[2][kTallGroup][kPack];

__device__ inline unsigned larger(unsigned a, unsigned b) {
  return a > b ? a : b;
}
/// Returns the maximum over threads that differ in the index bits from `first` to `last`.
__device__ inline unsigned largest_over(unsigned most, int first, int last) {
#pragma unroll
  for (int bit = first; bit <= last; bit *= 2) most = larger(most, __shfl_xor_sync(0xFFFFFFFFu, most, bit));
  return most;
}

/// Computes the largest magnitude of each row of a thread over the square, in all threads of the row.
__device__ inline void rows_most(const Values& x, unsigned (&most)[kTallGroup]) {
#pragma unroll
  for (int i = 0; i < kTallGroup; ++i) {
    most[i] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) raise_most(x[half][i], kPack, most[i]);
    most[i] = largest_over(most[i], 1, kTile / kPack / 2);
  }
}

/// Writes the largest magnitude of each column over the square to `shared`. Called by all threads; a barrier
/// must follow.
__device__ inline void columns_most(const Values& x, const Place& at,
                                    unsigned (&shared)[kTileThreads / kWarp][kSide]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      unsigned most = 0;
#pragma unroll
      for (int i = 0; i < kTallGroup; ++i) most = larger(most, magnitude_bits(x[half][i][k]));
      most = largest_over(most, kTile / kPack, kWarp / 2);
      if (threadIdx.x % kWarp < kTile / kPack) shared[threadIdx.x / kWarp][at.col(half) + k] = most;
    }
  }
}

/// Writes one half of the square, transposed, to the transposed copy.
__device__ inline void write_half(const TallTile& tile, const BlockQuantizeArgs& a, std::int64_t row0,
                                  std::int64_t col0, bool vector) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int i = static_cast<int>(threadIdx.x) + part * kTileThreads;
    const int q = i % 8, c = i / 8;
    const std::int64_t left = a.x.rows - row0 - q * 16;
    if (left <= 0 || col0 + c >= a.x.cols) continue;
    const uint4 v = *reinterpret_cast<const uint4*>(&tile.word[c][(q ^ (c / kPack)) * 4]);
    std::uint8_t* to = a.transposed + (col0 + c) * a.x.rows + row0 + q * 16;
    if (vector && left >= 16) {
      *reinterpret_cast<uint4*>(to) = v;
    } else {
      const auto* codes = reinterpret_cast<const std::uint8_t*>(&v);
      for (int k = 0; k < 16 && k < left; ++k) to[k] = codes[k];
    }
  }
}

struct Vectors {
  bool x, row, transposed;
};

template <typename T>
__global__ void __launch_bounds__(kTileThreads) block_quantize_kernel(BlockQuantizeArgs a, Vectors vector) {
  __shared__ __align__(16) TallTile tile[2];
  __shared__ unsigned column_most[kTileThreads / kWarp][kSide];
  __shared__ unsigned shared[kWarp];
  const std::int64_t across = scale_blocks(a.x.cols);
  const std::int64_t row0 = blockIdx.x / across * kSide, col0 = blockIdx.x % across * kSide;
  const Place at;
  Values x;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kTallGroup; ++i) {
      const std::int64_t row = row0 + at.row(i), col = col0 + at.col(half);
      const PackAt pack = pack_at(col, a.x.cols, vector.x);
      if (row < a.x.rows && pack.n > 0) {
        load_pack(row_of<T>(a.x, row) + col, x[half][i], pack.n, pack.whole);
      } else {
#pragma unroll
        for (int k = 0; k < kPack; ++k) x[half][i][k] = 0.0f;
      }
    }
  }
  const bool squares = a.scaling == Scaling::squares;
  unsigned row_most[kTallGroup];
  rows_most(x, row_most);
  std::int32_t square_exponent = 0;
  if (squares) {
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < kTallGroup; ++i) most = larger(most, row_most[i]);
    square_exponent = block_exponent(block_reduce(most, shared, Max{}));
    if (threadIdx.x == 0) {
      const auto put = [&](float* scales, std::int64_t rows, std::int64_t cols, std::int64_t r,
                           std::int64_t c) {
        if (scales == nullptr) return;
        float* to = scales + scale_index(Scaling::squares, rows, cols, r, c);
        const std::int64_t block = c / kScaleBlock, pitch = square_pitch(cols);
        *to = power_of_two(square_exponent);
        for (std::int64_t i = 1; block + 1 == scale_blocks(cols) && block + i < pitch; ++i) to[i] = 1.0f;
      };
      put(a.scale_inv, a.x.rows, a.x.cols, row0, col0);
      put(a.transposed_scale_inv, a.x.cols, a.x.rows, col0, row0);
    }
  }
  if (a.row != nullptr) {
    Met met;
    const Fp8Out counted{.seen = a.seen};
#pragma unroll
    for (int i = 0; i < kTallGroup; ++i) {
      const std::int64_t row = row0 + at.row(i);
      if (row >= a.x.rows) continue;
      const std::int32_t e = squares ? square_exponent : block_exponent(row_most[i]);
      if (!squares && at.pack == 0) a.scale_inv[col0 / kSide * a.x.rows + row] = power_of_two(e);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t col = col0 + at.col(half);
        const std::int64_t left = a.x.cols - col;
        if (left <= 0) continue;
        std::uint8_t* to = a.row + row * a.x.cols + col;
        meet_pack(counted, x[half][i], power_of_two(-e), left < kPack ? static_cast<int>(left) : kPack, met);
        const uint2 codes = to_fp8_pack(x[half][i], power_of_two(-e), true);
        if (vector.row && left >= kPack) {
          *reinterpret_cast<uint2*>(to) = codes;
        } else {
          const auto* bytes = reinterpret_cast<const std::uint8_t*>(&codes);
          for (int k = 0; k < kPack && k < left; ++k) to[k] = bytes[k];
        }
      }
    }
    if (a.seen != nullptr) {
      const unsigned most = block_reduce(met.most, shared, Max{});
      if (threadIdx.x == 0) raise_amax(&a.seen->amax, most);
      add_counts(a.seen, met, shared);
      if (threadIdx.x == 0 && blockIdx.x == 0) {
        a.seen->values += static_cast<std::uint64_t>(a.x.rows) * static_cast<std::uint64_t>(a.x.cols);
      }
    }
  }
  if (a.transposed == nullptr) return;
  if (!squares) {
    columns_most(x, at, column_most);
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float scale[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      std::int32_t e = square_exponent;
      if (!squares) {
        unsigned most = 0;
        const int col = at.col(half) + k;
#pragma unroll
        for (int w = 0; w < kTileThreads / kWarp; ++w) most = larger(most, column_most[w][col]);
        e = block_exponent(most);
        if (at.group == 0 && col0 + col < a.x.cols) {
          a.transposed_scale_inv[row0 / kSide * a.x.cols + col0 + col] = power_of_two(e);
        }
      }
      scale[k] = power_of_two(-e);
    }
    uint2 codes[kTallGroup];
#pragma unroll
    for (int i = 0; i < kTallGroup; ++i) {
      float y[kPack];
#pragma unroll
      for (int k = 0; k < kPack; ++k) y[k] = x[half][i][k] * scale[k];
      codes[i] = to_fp8_pack(y, 1.0f, true);
    }
    tile[half].put(codes, at.pack, at.group);
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half)
    write_half(tile[half], a, row0, col0 + half * kTile, vector.transposed);
}

/// Unmodified rows.
template <typename T>
struct Given {
  ConstMatrix x;
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&y)[kPack]) const {
    load_pack(row_of<T>(x, row) + col, y, at.n, at.whole);
  }
};

}  // namespace

void block_quantize(Stream& stream, const BlockQuantizeArgs& a) {
  if (a.scaling == Scaling::whole_rows) {
    return with_type(a.x.dtype, [&](auto type) {
      launch_rows(stream, Given<decltype(type)>{a.x}, row_copy(a.row, a.scale_inv, a.x.rows, a.x.cols),
                  packs(a.x), "block_quantize");
    });
  }
  const auto on = [](const void* data, std::uintptr_t bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
  };
  const Vectors vector{.x = packs(a.x),
                       .row = a.x.cols % kPack == 0 && on(a.row, kPack),
                       .transposed = a.x.rows % 16 == 0 && on(a.transposed, 16)};
  const auto grid = static_cast<unsigned>(scale_blocks(a.x.rows) * scale_blocks(a.x.cols));
  with_type(a.x.dtype, [&](auto type) {
    block_quantize_kernel<decltype(type)><<<grid, kTileThreads, 0, octet::cuda::native(stream)>>>(a, vector);
  });
  octet::cuda::check_launch("block_quantize");
}

}  // namespace octet::ops::cuda
