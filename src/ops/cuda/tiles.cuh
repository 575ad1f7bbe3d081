// Element-wise producers of matrices with both FP8 copies. A block owns a tile of 64 rows and 64 columns,
// transposes it in shared memory and writes both copies, so that the values are read once.
#pragma once

#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"

namespace octet::ops::cuda {

inline constexpr int kTile = 64;
inline constexpr int kTileThreads = 256;
/// Row pitch in bytes of a tile in shared memory. It keeps words aligned and columns in different banks.
inline constexpr int kTilePitch = kTile + 4;

struct TileOut {
  Fp8Out fp8;
  std::uint8_t* transposed = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;  ///< columns of one output; output j starts at column j * cols of the FP8 copies
  bool transposed_vector = false;  ///< 16 rows of the transposed copy are aligned to 16 bytes
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

/// Writes a tile, stored by rows in shared memory, to the transposed copy. Called by all threads after a
/// barrier.
__device__ inline void write_transposed(const std::uint8_t (&tile)[kTile][kTilePitch],
                                        std::uint8_t* transposed, std::int64_t rows, std::int64_t row0,
                                        std::int64_t col0, std::int64_t cols, bool vector) {
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

/// F computes packs. `f(row, col, at, y)` fills y[j][0..at.n) for each of its `F::outputs` outputs, rounded
/// to the precision of stored values. It also stores the unquantized values.
template <typename F>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(F f, TileOut out, bool vector) {
  __shared__ __align__(16) std::uint8_t tile[F::outputs][kTile][kTilePitch];
  __shared__ unsigned shared[kWarp];
  const std::int64_t across = (out.cols + kTile - 1) / kTile;
  const std::int64_t row0 = blockIdx.x / across * kTile, col0 = blockIdx.x % across * kTile;
  const int r = threadIdx.x / 4;
  const float scale = out.fp8.row || out.transposed ? *out.fp8.scale : 1.0f;
  Met met;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // The four threads of a row process neighbouring packs.
    const int c = (half * 4 + static_cast<int>(threadIdx.x) % 4) * kPack;
    const std::int64_t row = row0 + r, col = col0 + c;
    if (row >= out.rows || col >= out.cols) continue;
    const PackAt at = pack_at(col, out.cols, vector);
    float y[F::outputs][kPack];
    f(row, col, at, y);
#pragma unroll
    for (int j = 0; j < F::outputs; ++j) {
      take_pack(out.fp8, y[j], scale, row, j * out.cols + col, at.n, met);
      if (!out.transposed) continue;
      const uint2 codes = to_fp8_pack(y[j], scale, out.fp8.e4m3);
      *reinterpret_cast<unsigned*>(&tile[j][r][c]) = codes.x;
      *reinterpret_cast<unsigned*>(&tile[j][r][c + 4]) = codes.y;
    }
  }
  finish_met(out.fp8, met, scale, shared);
  if (!out.transposed) return;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < F::outputs; ++j) {
    write_transposed(tile[j], out.transposed + j * out.cols * out.rows, out.rows, row0, col0, out.cols,
                     out.transposed_vector);
  }
}

// --- tall tiles ------------------------------------------------------------------------------------------
// If rows and columns are whole tiles, a thread owns four rows of a pack. Its loads are in flight together,
// and its bytes are transposed in registers, four at a time, before they are written to shared memory.

inline constexpr int kTallRows = 128;
inline constexpr int kTallGroup = 4;  ///< rows of a thread
static_assert(kTallRows / kTallGroup * (kTile / kPack) == kTileThreads);

/// Transposes four rows of four bytes into four column words.
__device__ inline void turn_bytes(const unsigned (&row)[4], unsigned (&column)[4]) {
  const unsigned a = __byte_perm(row[0], row[1], 0x5140), b = __byte_perm(row[2], row[3], 0x5140);
  const unsigned c = __byte_perm(row[0], row[1], 0x7362), d = __byte_perm(row[2], row[3], 0x7362);
  column[0] = __byte_perm(a, b, 0x5410);
  column[1] = __byte_perm(a, b, 0x7632);
  column[2] = __byte_perm(c, d, 0x5410);
  column[3] = __byte_perm(c, d, 0x7632);
}

/// A transposed tile of kTallRows rows in shared memory. A word holds four rows of a column. Words of a
/// column are permuted by the pack of the column, so that neither writes nor reads have bank conflicts.
struct TallTile {
  unsigned word[kTile][kTallRows / kTallGroup];
  /// codes: four rows of the column pack `pack`, starting at row 4 * group.
  __device__ void put(const uint2 (&codes)[kTallGroup], int pack, int group) {
    unsigned column[4];
    turn_bytes({codes[0].x, codes[1].x, codes[2].x, codes[3].x}, column);
#pragma unroll
    for (int k = 0; k < 4; ++k) word[pack * kPack + k][group ^ (pack * 4)] = column[k];
    turn_bytes({codes[0].y, codes[1].y, codes[2].y, codes[3].y}, column);
#pragma unroll
    for (int k = 0; k < 4; ++k) word[pack * kPack + 4 + k][group ^ (pack * 4)] = column[k];
  }
  /// The columns of a transposed copy: `rows` elements each, `pitch` elements apart.
  struct Columns {
    std::int64_t rows, pitch;
  };
  /// Writes the tile. The number of rows is a multiple of 16, and each column is aligned to 16 bytes.
  __device__ void write(std::uint8_t* transposed, std::int64_t rows, std::int64_t row0,
                        std::int64_t col0) const {
    write(transposed, Columns{rows, rows}, row0, col0);
  }
  __device__ void write(std::uint8_t* transposed, const Columns& columns, std::int64_t row0,
                        std::int64_t col0) const {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int i = static_cast<int>(threadIdx.x) + part * kTileThreads;
      const int q = i % 8, c = i / 8;
      if (row0 + q * 16 >= columns.rows) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(&word[c][(q ^ (c / kPack)) * 4]);
      *reinterpret_cast<uint4*>(transposed + (col0 + c) * columns.pitch + row0 + q * 16) = v;
    }
  }
};

/// Computes the tile of a block, like tile_kernel, for an F that loads and computes in two steps. `load(row,
/// col)` returns a Raw pack. `compute(row, col, raw, y)` is the call operator for a whole pack. `column(j,
/// col)` returns the column of output j in the copies. `full`: the last tile also has all its rows.
template <typename F, bool e4m3, bool full>
__device__ void tall_tile(const F& f, const TileOut& out) {
  __shared__ __align__(16) TallTile tile[F::outputs];
  __shared__ unsigned shared[kWarp];
  const auto across = static_cast<unsigned>(out.cols / kTile);
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x / across) * kTallRows;
  const std::int64_t col0 = static_cast<std::int64_t>(blockIdx.x % across) * kTile;
  const int pack = static_cast<int>(threadIdx.x) % (kTile / kPack);
  const int group = static_cast<int>(threadIdx.x) / (kTile / kPack);
  const std::int64_t row = row0 + group * kTallGroup, col = col0 + pack * kPack;
  const bool copies = out.fp8.row || out.transposed;
  const float scale = copies ? *out.fp8.scale : 1.0f;
  typename F::Raw raw[kTallGroup];
#pragma unroll
  for (int i = 0; i < kTallGroup; ++i) {
    if (full || row + i < out.rows) raw[i] = f.load(row + i, col);
  }
  Met met;
  uint2 codes[F::outputs][kTallGroup] = {};
#pragma unroll
  for (int i = 0; i < kTallGroup; ++i) {
    if (!full && row + i >= out.rows) continue;
    float y[F::outputs][kPack];
    f.compute(row + i, col, raw[i], y);
#pragma unroll
    for (int j = 0; j < F::outputs; ++j) {
      meet_pack(out.fp8, y[j], scale, kPack, met);
      if (!copies) continue;
      codes[j][i] = to_fp8_pack(y[j], scale, e4m3);
      if (out.fp8.row) {
        *reinterpret_cast<uint2*>(out.fp8.row + (row + i) * out.fp8.cols + f.column(j, col)) = codes[j][i];
      }
    }
  }
  finish_met(out.fp8, met, scale, shared);
  if (!out.transposed) return;
#pragma unroll
  for (int j = 0; j < F::outputs; ++j) tile[j].put(codes[j], pack, group);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < F::outputs; ++j) {
    tile[j].write(out.transposed, out.rows, row0, f.column(j, col0));
  }
}

template <typename F, bool e4m3, bool full>
__global__ void __launch_bounds__(kTileThreads, 3) tall_kernel(F f, TileOut out) {
  let_next_begin();
  wait_for_previous();
  tall_tile<F, e4m3, full>(f, out);
}

/// True if tall tiles support an output.
inline bool fits_tall(const TileOut& out) {
  return out.cols % kTile == 0 && (!out.fp8.row || out.fp8.vector) &&
         (!out.transposed || out.transposed_vector);
}

template <typename F>
void launch_tall(Stream& stream, const F& f, const TileOut& out, const char* op) {
  const auto grid = static_cast<unsigned>(ceil_div(out.rows, kTallRows) * (out.cols / kTile));
  if (grid == 0) return;
  const auto launch = [&](auto kernel) {
    launch_early_if(few_rows(out.rows), kernel, dim3(grid), kTileThreads, 0, octet::cuda::native(stream), op,
                    f, out);
  };
  const auto with_rows = [&](auto full) {
    if (out.fp8.e4m3) {
      launch(tall_kernel<F, true, full.value>);
    } else {
      launch(tall_kernel<F, false, full.value>);
    }
  };
  if (out.rows % kTallRows == 0) {
    with_rows(std::true_type{});
  } else {
    with_rows(std::false_type{});
  }
}

template <typename F>
void launch_tiles(Stream& stream, const F& f, const TileOut& out, bool vector, const char* op) {
  const std::int64_t tiles = ceil_div(out.rows, kTile) * ceil_div(out.cols, kTile);
  if (tiles == 0) return;
  if (vector && fits_tall(out)) return launch_tall(stream, f, out, op);
  tile_kernel<<<static_cast<unsigned>(tiles), kTileThreads, 0, octet::cuda::native(stream)>>>(f, out, vector);
  octet::cuda::check_launch(op);
}

}  // namespace octet::ops::cuda
