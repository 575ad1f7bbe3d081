// Element-wise producers of matrices that are wanted in FP8 both ways: a block owns a tile of 64 rows and 64
// columns, turns it in shared memory and writes both copies whole, so that the values are read once.
#pragma once

#include "cuda/rows.cuh"

namespace octet::ops::cuda {

inline constexpr int kTile = 64;
inline constexpr int kTileThreads = 256;
/// Bytes between rows of a tile in shared memory: keeps words aligned and columns in different banks.
inline constexpr int kTilePitch = kTile + 4;

struct TileOut {
  Fp8Out fp8;
  std::uint8_t* transposed = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;           ///< of one output; output j starts at column j * cols of the FP8 copies
  bool transposed_vector = false;  ///< 16 rows of the transposed copy start on a 16-byte boundary
};
inline TileOut tile_out(const QuantizeInto& q, std::int64_t rows, std::int64_t cols, int outputs) {
  TileOut out{
      .fp8 = fp8_out(q, rows, outputs * cols),
      .transposed = q.transposed,
      .rows = rows,
      .cols = cols,
      .transposed_vector = rows % 16 == 0 && reinterpret_cast<std::uintptr_t>(q.transposed) % 16 == 0};
  out.fp8.scattered = nullptr;
  out.fp8.vector = out.fp8.vector && cols % kPack == 0;
  return out;
}

/// Writes a tile that lies in shared memory as rows into the transposed copy. All threads call it after a
/// barrier.
__device__ inline void write_turned(const std::uint8_t (&tile)[kTile][kTilePitch], std::uint8_t* transposed,
                                    std::int64_t rows, std::int64_t row0, std::int64_t col0,
                                    std::int64_t cols, bool vector) {
  const int c = threadIdx.x / 4, r = threadIdx.x % 4 * 16;
  if (col0 + c >= cols || row0 + r >= rows) return;
  const std::int64_t left = rows - row0 - r;
  std::uint8_t* to = transposed + (col0 + c) * rows + row0 + r;
  if (vector && left >= 16) {
    unsigned words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[w] = static_cast<unsigned>(tile[r + 4 * w][c]) |
                 static_cast<unsigned>(tile[r + 4 * w + 1][c]) << 8 |
                 static_cast<unsigned>(tile[r + 4 * w + 2][c]) << 16 |
                 static_cast<unsigned>(tile[r + 4 * w + 3][c]) << 24;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    for (int i = 0; i < 16 && i < left; ++i) to[i] = tile[r + i][c];
  }
}

/// F computes packs: `f(row, col, at, y)` fills y[j][0..at.n) for each of its `F::outputs` outputs, rounded
/// to what is kept of them, and stores what it keeps itself.
template <typename F>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(F f, TileOut out, bool vector) {
  __shared__ __align__(16) std::uint8_t tile[F::outputs][kTile][kTilePitch];
  __shared__ unsigned shared[kWarp];
  const std::int64_t across = (out.cols + kTile - 1) / kTile;
  const std::int64_t row0 = blockIdx.x / across * kTile, col0 = blockIdx.x % across * kTile;
  const int r = threadIdx.x / 4;
  const float scale = out.fp8.row || out.transposed ? *out.fp8.scale : 1.0f;
  unsigned most = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // The four threads of a row take packs side by side.
    const int c = (half * 4 + static_cast<int>(threadIdx.x) % 4) * kPack;
    const std::int64_t row = row0 + r, col = col0 + c;
    if (row >= out.rows || col >= out.cols) continue;
    const PackAt at = pack_at(col, out.cols, vector);
    float y[F::outputs][kPack];
    f(row, col, at, y);
#pragma unroll
    for (int j = 0; j < F::outputs; ++j) {
      take_pack(out.fp8, y[j], scale, row, j * out.cols + col, at.n, most);
      if (!out.transposed) continue;
      const uint2 codes = to_fp8_pack(y[j], scale, out.fp8.e4m3);
      *reinterpret_cast<unsigned*>(&tile[j][r][c]) = codes.x;
      *reinterpret_cast<unsigned*>(&tile[j][r][c + 4]) = codes.y;
    }
  }
  finish_amax(out.fp8, most, shared);
  if (!out.transposed) return;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < F::outputs; ++j) {
    write_turned(tile[j], out.transposed + j * out.cols * out.rows, out.rows, row0, col0, out.cols,
                 out.transposed_vector);
  }
}

template <typename F>
void launch_tiles(Stream& stream, const F& f, const TileOut& out, bool vector, const char* op) {
  const std::int64_t tiles = ceil_div(out.rows, kTile) * ceil_div(out.cols, kTile);
  if (tiles == 0) return;
  tile_kernel<<<static_cast<unsigned>(tiles), kTileThreads, 0, octet::cuda::native(stream)>>>(f, out, vector);
  octet::cuda::check_launch(op);
}

}  // namespace octet::ops::cuda
