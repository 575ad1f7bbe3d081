#include "cuda/early_launch.cuh"
#include "cuda/tiles.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void rope_table_kernel(RopeTableArgs a) {
  const std::int64_t count = a.positions * a.half_dim;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t e = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; e < count;
       e += stride) {
    const float angle = static_cast<float>(e / a.half_dim) * a.inv_freq[e % a.half_dim];
    // Computed in double, so that the table is correctly rounded.
    a.cosine[e] = static_cast<float>(cos(static_cast<double>(angle))) * a.factor;
    a.sine[e] = static_cast<float>(sin(static_cast<double>(angle))) * a.factor;
  }
}

/// Half of the dimensions of a head that rotate.
__host__ __device__ inline std::int64_t half_of(const RopeArgs& a) {
  return (a.rotated == 0 ? a.heads.head_dim : a.rotated) / 2;
}

/// Threads that share the heads of a row.
constexpr unsigned kRowThreads = 64;

// A thread rotates packs of the first halves of heads with their partners in the second halves. If a thread
// has the same columns in each of its heads, it reads their cosines and sines once.
template <typename T>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeArgs a, bool vector) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t half = half_of(a);
  const auto half_packs = static_cast<unsigned>((half + kPack - 1) / kPack);
  const unsigned in_row = static_cast<unsigned>(a.heads.q_heads + a.heads.kv_heads) * half_packs;
  const bool same_columns = kRowThreads % half_packs == 0;
  const float sign = a.inverse ? -1.0f : 1.0f;
  constexpr unsigned rows_at_once = kThreads / kRowThreads;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_at_once + threadIdx.x / kRowThreads;
       row < a.qkv.rows; row += static_cast<std::int64_t>(gridDim.x) * rows_at_once) {
    const std::int64_t place = static_cast<std::int64_t>(a.positions[row]) * half;
    float c[kPack], s[kPack];
    const unsigned first_pack = blockIdx.y * kRowThreads + threadIdx.x % kRowThreads;
    for (unsigned p = first_pack; p < in_row; p += gridDim.y * kRowThreads) {
      const std::int64_t col = static_cast<std::int64_t>(p % half_packs) * kPack;
      const PackAt at = pack_at(col, half, vector);
      if (!same_columns || p == first_pack) {
        load_pack(a.cosine + place + col, c, at.n, at.whole);
        load_pack(a.sine + place + col, s, at.n, at.whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) s[i] *= sign;
      }
      T* first = row_of<T>(a.qkv, row) + p / half_packs * a.heads.head_dim + col;
      float x[kPack], y[kPack], u[kPack], v[kPack];
      load_pack(static_cast<const T*>(first), x, at.n, at.whole);
      load_pack(static_cast<const T*>(first + half), y, at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        u[i] = x[i] * c[i] - y[i] * s[i];
        v[i] = y[i] * c[i] + x[i] * s[i];
      }
      store_pack(first, u, at.n, at.whole);
      store_pack(first + half, v, at.n, at.whole);
    }
  }
}

/// Pairs of a pack.
constexpr int kPairs = kPack / 2;

// A thread rotates the pairs (2 i, 2 i + 1) of packs of heads.
template <typename T>
__global__ void __launch_bounds__(kThreads) rope_pairs_kernel(RopeArgs a, bool vector) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t half = half_of(a);
  const auto packs_of_head = static_cast<unsigned>((2 * half + kPack - 1) / kPack);
  const unsigned in_row = static_cast<unsigned>(a.heads.q_heads + a.heads.kv_heads) * packs_of_head;
  const float sign = a.inverse ? -1.0f : 1.0f;
  constexpr unsigned rows_at_once = kThreads / kRowThreads;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_at_once + threadIdx.x / kRowThreads;
       row < a.qkv.rows; row += static_cast<std::int64_t>(gridDim.x) * rows_at_once) {
    const std::int64_t place = static_cast<std::int64_t>(a.positions[row]) * half;
    for (unsigned p = blockIdx.y * kRowThreads + threadIdx.x % kRowThreads; p < in_row;
         p += gridDim.y * kRowThreads) {
      const std::int64_t col = static_cast<std::int64_t>(p % packs_of_head) * kPack;
      const PackAt at = pack_at(col, 2 * half, vector);
      T* const head = row_of<T>(a.qkv, row) + p / packs_of_head * a.heads.head_dim + col;
      float x[kPack], y[kPack];
      load_pack(static_cast<const T*>(head), x, at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (2 * i >= at.n) break;
        const std::int64_t angle = place + col / 2 + i;
        const float c = a.cosine[angle], s = a.sine[angle] * sign;
        y[2 * i] = x[2 * i] * c - x[2 * i + 1] * s;
        y[2 * i + 1] = x[2 * i + 1] * c + x[2 * i] * s;
      }
      store_pack(head, y, at.n, at.whole);
    }
  }
}

/// Columns of a strip. A tile is a strip of the first half of a head and its partner in the second half. For
/// values, it is two consecutive strips.
constexpr int kStrip = kTile / 2;

// Rotates a tile of 64 rows and writes both FP8 copies, so that the matrix is read once. Halves of heads are
// whole strips.
template <typename T>
__global__ void __launch_bounds__(kTileThreads) rope_tile_kernel(RopeArgs a, TileOut out) {
  __shared__ __align__(16) std::uint8_t tile[kTile][kTilePitch];
  __shared__ unsigned shared[kWarp];
  const std::int64_t half = a.heads.head_dim / 2, strips = half / kStrip;
  const std::int64_t tiles = out.cols / kTile;
  const std::int64_t row0 = blockIdx.x / tiles * kTile, unit = blockIdx.x % tiles;
  const std::int64_t head = unit / strips, strip = unit % strips;
  const bool rotated = head < a.heads.q_heads + a.heads.kv_heads;
  const std::int64_t first = head * a.heads.head_dim + (rotated ? strip * kStrip : strip * kTile);
  const std::int64_t second = first + (rotated ? half : kStrip);
  const int r = threadIdx.x / 4, c = static_cast<int>(threadIdx.x) % 4 * kPack;
  const std::int64_t row = row0 + r;
  const float scale = *out.fp8.scale;
  Met met;
  if (row < out.rows) {
    T* at = row_of<T>(a.qkv, row);
    float x[kPack], y[kPack];
    load_pack(static_cast<const T*>(at + first + c), x, kPack, true);
    load_pack(static_cast<const T*>(at + second + c), y, kPack, true);
    if (rotated) {
      const std::int64_t place = a.positions[row] * half + strip * kStrip + c;
      const float sign = a.inverse ? -1.0f : 1.0f;
      float cosine[kPack], sine[kPack];
      load_pack(a.cosine + place, cosine, kPack, true);
      load_pack(a.sine + place, sine, kPack, true);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float s = sine[i] * sign;
        const float u = x[i] * cosine[i] - y[i] * s;
        const float v = y[i] * cosine[i] + x[i] * s;
        x[i] = rounded_to<T>(u);
        y[i] = rounded_to<T>(v);
      }
      if (a.keep_values) {
        store_pack(at + first + c, x, kPack, true);
        store_pack(at + second + c, y, kPack, true);
      }
    }
    take_pack(out.fp8, x, scale, row, first + c, kPack, met);
    take_pack(out.fp8, y, scale, row, second + c, kPack, met);
    if (out.transposed) {
      const uint2 low = to_fp8_pack(x, scale, out.fp8.e4m3), high = to_fp8_pack(y, scale, out.fp8.e4m3);
      *reinterpret_cast<unsigned*>(&tile[r][c]) = low.x;
      *reinterpret_cast<unsigned*>(&tile[r][c + 4]) = low.y;
      *reinterpret_cast<unsigned*>(&tile[r][kStrip + c]) = high.x;
      *reinterpret_cast<unsigned*>(&tile[r][kStrip + c + 4]) = high.y;
    }
  }
  finish_met(out.fp8, met, scale, shared);
  if (!out.transposed) return;
  __syncthreads();
  // The second strip of a tile has a separate column offset.
  const bool in_second = threadIdx.x / 4 >= kStrip;
  write_transposed(tile, out.transposed, out.rows, row0, in_second ? second - kStrip : first, out.cols,
                   out.transposed_vector);
}

/// Heads, or pairs of heads, that a block processes with one load of their cosines and sines.
constexpr int kHeadsAtOnce = 4;

/// Cosines and sines for the rows and columns of a thread. They are in shared memory because registers hold
/// loads in flight. The sines have the sign of the direction. No other thread reads them.
struct Angles {
  static constexpr std::size_t bytes = std::size_t{4} * kTallGroup * kTileThreads * sizeof(float4);
  float4 (*four)[kTileThreads];
  __device__ void put(int i, const float (&cosine)[kPack], const float (&sine)[kPack]) const {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const float *c = cosine + 4 * q, *s = sine + 4 * q;
      four[4 * i + q][threadIdx.x] = make_float4(c[0], c[1], c[2], c[3]);
      four[4 * i + 2 + q][threadIdx.x] = make_float4(s[0], s[1], s[2], s[3]);
    }
  }
  __device__ void get(int i, float (&cosine)[kPack], float (&sine)[kPack]) const {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      *reinterpret_cast<float4*>(cosine + 4 * q) = four[4 * i + q][threadIdx.x];
      *reinterpret_cast<float4*>(sine + 4 * q) = four[4 * i + 2 + q][threadIdx.x];
    }
  }
};

// Like rope_tile_kernel(), for heads with halves of whole tiles. A block processes kTallRows rows of a strip
// of kTile columns of the first half, and their partners. It iterates over heads, because all heads have the
// same angles. pairs: a head is one tile with both halves, and two heads are processed together.
template <typename T, bool e4m3, bool pairs>
__global__ void __launch_bounds__(kTileThreads, 2) rope_tall_kernel(RopeArgs a, TileOut out) {
  __shared__ __align__(16) TallTile tile[2][2];  // two buffers, so that one barrier per head is enough
  __shared__ unsigned shared[kWarp];
  constexpr int each = pairs ? 2 : 1;
  const int rotated = static_cast<int>(a.heads.q_heads + a.heads.kv_heads);
  const int heads = (rotated + static_cast<int>(a.heads.kv_heads)) / each;
  const std::int64_t half = a.heads.head_dim / 2, width = each * a.heads.head_dim;
  const auto strips = static_cast<unsigned>(pairs ? 1 : half / kTile);
  const auto groups = static_cast<unsigned>((heads + kHeadsAtOnce - 1) / kHeadsAtOnce);
  const std::int64_t strip = static_cast<std::int64_t>(blockIdx.x % strips) * kTile;
  const int first_head = static_cast<int>(blockIdx.x / strips % groups) * kHeadsAtOnce;
  const int end_head = first_head + kHeadsAtOnce < heads ? first_head + kHeadsAtOnce : heads;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x / strips / groups) * kTallRows;
  const int pack = static_cast<int>(threadIdx.x) % (kTile / kPack);
  const int group = static_cast<int>(threadIdx.x) / (kTile / kPack);
  const int of_pair = pairs ? pack / 4 : 0, pack_of_half = pairs ? pack % 4 : pack;
  const std::int64_t row = row0 + group * kTallGroup, col = strip + pack_of_half * kPack;
  const float scale = *out.fp8.scale;
  // Threads after the last row re-read it and write nothing, which avoids branches below.
  std::int64_t rows[kTallGroup];
#pragma unroll
  for (int i = 0; i < kTallGroup; ++i) rows[i] = row + i < a.qkv.rows ? row + i : a.qkv.rows - 1;
  extern __shared__ float4 angle_memory[][kTileThreads];
  const Angles angles{angle_memory};
  if (first_head * each < rotated) {
#pragma unroll
    for (int i = 0; i < kTallGroup; ++i) {
      const std::int64_t place = static_cast<std::int64_t>(a.positions[rows[i]]) * half + col;
      alignas(16) float cosine[kPack], sine[kPack];
      load_pack(a.cosine + place, cosine, kPack, true);
      load_pack(a.sine + place, sine, kPack, true);
#pragma unroll
      for (int k = 0; k < kPack; ++k) sine[k] *= a.inverse ? -1.0f : 1.0f;
      angles.put(i, cosine, sine);
    }
  }
  Met met;
  for (int head = first_head; head < end_head; ++head) {
    const std::int64_t place = head * width + of_pair * a.heads.head_dim + col;
    const bool turns = head * each + of_pair < rotated;
    RawPack<T> raw[kTallGroup][2];
#pragma unroll
    for (int i = 0; i < kTallGroup; ++i) {
      const T* at = static_cast<const T*>(row_of<T>(a.qkv, rows[i])) + place;
      raw[i][0].load(at);
      raw[i][1].load(at + half);
    }
    uint2 codes[2][kTallGroup];
#pragma unroll
    for (int i = 0; i < kTallGroup; ++i) {
      const bool here = row + i < a.qkv.rows;
      float y[2][kPack];
      raw[i][0].get(y[0]);
      raw[i][1].get(y[1]);
      if (turns) {
        alignas(16) float cosine[kPack], sine[kPack];
        angles.get(i, cosine, sine);
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
          const float x = y[0][k], z = y[1][k], c = cosine[k], s = sine[k];
          y[0][k] = x * c - z * s;
          y[1][k] = z * c + x * s;
        }
        round_pack<T>(y[0]);
        round_pack<T>(y[1]);
        if (a.keep_values && here) {
          T* to = row_of<T>(a.qkv, row + i) + place;
          store_pack(to, y[0], kPack, true);
          store_pack(to + half, y[1], kPack, true);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (here) meet_pack(out.fp8, y[j], scale, kPack, met);
        codes[j][i] = to_fp8_pack(y[j], scale, e4m3);
        if (out.fp8.row && here) {
          *reinterpret_cast<uint2*>(out.fp8.row + (row + i) * out.fp8.cols + place + j * half) = codes[j][i];
        }
      }
    }
    if (!out.transposed) continue;
    TallTile(&columns)[2] = tile[(head - first_head) % 2];
    if constexpr (pairs) {
      columns[of_pair].put(codes[0], pack_of_half, group);
      columns[of_pair].put(codes[1], pack_of_half + 4, group);
    } else {
      columns[0].put(codes[0], pack, group);
      columns[1].put(codes[1], pack, group);
    }
    __syncthreads();
    columns[0].write(out.transposed, out.rows, row0, head * width + strip);
    columns[1].write(out.transposed, out.rows, row0, head * width + (pairs ? kTile : half) + strip);
  }
  finish_met(out.fp8, met, scale, shared);
}

template <typename T, bool pairs>
void launch_tall_rope(Stream& stream, const RopeArgs& a, const TileOut& out) {
  const std::int64_t heads = (a.heads.q_heads + 2 * a.heads.kv_heads) / (pairs ? 2 : 1);
  const std::int64_t strips = pairs ? 1 : a.heads.head_dim / 2 / kTile;
  const std::int64_t blocks = ceil_div(a.qkv.rows, kTallRows) * ceil_div(heads, kHeadsAtOnce) * strips;
  const auto kernel = out.fp8.e4m3 ? rope_tall_kernel<T, true, pairs> : rope_tall_kernel<T, false, pairs>;
  octet::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Angles::bytes),
                     "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), kTileThreads, Angles::bytes, octet::cuda::native(stream)>>>(a, out);
  octet::cuda::check_launch("rope");
}

/// True if the tile kernel supports the arguments: all packs are whole, and all strips are within one half of
/// a head, which rotates as a whole and is not interleaved.
bool takes_tiles(const RopeArgs& a) {
  return !a.interleaved && half_of(a) == a.heads.head_dim / 2 && (a.quantize.row || a.quantize.transposed) &&
         a.heads.head_dim % kTile == 0 && packs(a.qkv) && packs(a.cosine) && packs(a.sine);
}

}  // namespace

void rope_table(Stream& stream, const RopeTableArgs& a) {
  const std::int64_t count = a.positions * a.half_dim;
  if (count == 0) return;
  rope_table_kernel<<<grid_of(stream, count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("rope_table");
}

void rope(Stream& stream, const RopeArgs& a) {
  if (a.qkv.rows == 0) return;
  if (takes_tiles(a)) {
    const TileOut out = tile_out(a.quantize, a.qkv.rows, a.qkv.cols, 1);
    if (a.heads.head_dim % (2 * kTile) == 0 && fits_tall(out)) {
      with_type(a.qkv.dtype, [&](auto type) { launch_tall_rope<decltype(type), false>(stream, a, out); });
      return;
    }
    if (a.heads.head_dim == kTile && a.heads.q_heads % 2 == 0 && fits_tall(out)) {
      with_type(a.qkv.dtype, [&](auto type) { launch_tall_rope<decltype(type), true>(stream, a, out); });
      return;
    }
    const std::int64_t tiles = ceil_div(a.qkv.rows, kTile) * (a.qkv.cols / kTile);
    with_type(a.qkv.dtype, [&](auto type) {
      rope_tile_kernel<decltype(type)>
          <<<static_cast<unsigned>(tiles), kTileThreads, 0, octet::cuda::native(stream)>>>(a, out);
    });
    octet::cuda::check_launch("rope");
    return;
  }
  const std::int64_t half = half_of(a), each = a.interleaved ? 2 * half : half;
  const std::int64_t count = a.qkv.rows * (a.heads.q_heads + a.heads.kv_heads) * ceil_div(each, kPack);
  const bool vector =
      packs(a.qkv) && each % kPack == 0 && a.heads.head_dim % kPack == 0 && packs(a.cosine) && packs(a.sine);
  // With few rows, each thread rotates one pack, so that all threads wait for memory once.
  const std::int64_t blocks_of_row =
      few_rows(a.qkv.rows) ? ceil_div(ceil_div(count, a.qkv.rows), kRowThreads) : 1;
  if (count > 0) {
    with_type(a.qkv.dtype, [&](auto type) {
      launch_early_if(
          few_rows(a.qkv.rows),
          a.interleaved ? rope_pairs_kernel<decltype(type)> : rope_kernel<decltype(type)>,
          dim3(grid_of(stream, a.qkv.rows, kThreads / kRowThreads), static_cast<unsigned>(blocks_of_row)),
          kThreads, 0, octet::cuda::native(stream), "rope", a, vector);
    });
  }
  // The copy includes the values, so it is made from the whole matrix.
  if (a.quantize.row || a.quantize.transposed || a.quantize.amax)
    quantize(stream, QuantizeArgs{a.qkv, a.quantize});
}

}  // namespace octet::ops::cuda
