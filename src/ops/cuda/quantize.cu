#include <cfloat>

#include "cuda/rows.cuh"
#include "cuda/tiles.cuh"

namespace octet::ops::cuda {
namespace {

template <typename T>
struct Loaded {
  static constexpr int outputs = 1;
  using Raw = RawPack<T>;
  ConstMatrix x;
  __device__ std::int64_t column(int, std::int64_t col) const { return col; }
  __device__ Raw load(std::int64_t row, std::int64_t col) const {
    Raw raw;
    raw.load(row_of<T>(x, row) + col);
    return raw;
  }
  __device__ void compute(std::int64_t, std::int64_t, const Raw& raw, float (&y)[1][kPack]) const {
    raw.get(y[0]);
  }
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&y)[1][kPack]) const {
    load_pack(row_of<T>(x, row) + col, y[0], at.n, at.whole);
  }
};

// The tiles of matrix blockIdx.y.
template <typename T, bool e4m3, bool full>
__global__ void __launch_bounds__(kTileThreads, 3)
    each_kernel(Loaded<T> f, TileOut out, const std::int32_t* skip) {
  if (skip != nullptr && *skip != 0) return;
  const auto i = static_cast<std::int64_t>(blockIdx.y), begin = i * out.rows * out.cols;
  f.x.data = static_cast<const T*>(f.x.data) + begin;
  if (out.fp8.row != nullptr) out.fp8.row += begin;
  if (out.transposed != nullptr) out.transposed += begin;
  if (out.fp8.scale != nullptr) out.fp8.scale += i;
  if (out.fp8.amax != nullptr) out.fp8.amax += i;
  if (out.fp8.seen != nullptr) out.fp8.seen += i;
  tall_tile<Loaded<T>, e4m3, full>(f, out);
}

constexpr int kAmaxThreads = 256;

// A block processes rows. A thread processes four packs of them at a time, so that their loads are in flight
// together.
template <typename T>
__global__ void __launch_bounds__(kAmaxThreads) amax_kernel(AmaxArgs a, bool vector) {
  __shared__ unsigned shared[kWarp];
  if (a.skip != nullptr && *a.skip != 0) return;
  const ConstMatrix& x = a.x;
  constexpr int at_once = 4;
  unsigned most = 0;
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const T* from = row_of<T>(x, row);
    for (std::int64_t col0 = threadIdx.x * kPack; col0 < x.cols; col0 += at_once * kAmaxThreads * kPack) {
      float y[at_once][kPack] = {};
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const std::int64_t col = col0 + static_cast<std::int64_t>(i) * kAmaxThreads * kPack;
        const PackAt at = pack_at(col, x.cols, vector);
        if (at.n > 0) load_pack(from + col, y[i], at.n, at.whole);
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) raise_most(y[i], kPack, most);
    }
  }
  most = block_reduce(most, shared, Max{});
  if (threadIdx.x == 0) raise_amax(a.amax, most);
}

// Whole tiles of kTallRows rows and twice kTile columns. A thread transposes four rows of 16 bytes.
__global__ void __launch_bounds__(kTileThreads) tall_transpose_kernel(TransposeArgs a) {
  __shared__ __align__(16) TallTile tile[2];
  const auto across = static_cast<unsigned>(a.cols / (2 * kTile));
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x / across) * kTallRows;
  const std::int64_t col0 = static_cast<std::int64_t>(blockIdx.x % across) * (2 * kTile);
  // Eight threads process 128 bytes of a row. The 16 bytes of a thread are two packs of one tile.
  const int part = static_cast<int>(threadIdx.x) % 8, group = static_cast<int>(threadIdx.x) / 8;
  const std::int64_t row = row0 + group * kTallGroup;
  uint4 bytes[kTallGroup] = {};
#pragma unroll
  for (int i = 0; i < kTallGroup; ++i) {
    if (row + i < a.rows) {
      bytes[i] = *reinterpret_cast<const uint4*>(a.from + (row + i) * a.cols + col0 + part * 16);
    }
  }
  TallTile& mine = tile[part / 4];
  const int pack = part % 4 * 2;
  mine.put({{bytes[0].x, bytes[0].y},
            {bytes[1].x, bytes[1].y},
            {bytes[2].x, bytes[2].y},
            {bytes[3].x, bytes[3].y}},
           pack, group);
  mine.put({{bytes[0].z, bytes[0].w},
            {bytes[1].z, bytes[1].w},
            {bytes[2].z, bytes[2].w},
            {bytes[3].z, bytes[3].w}},
           pack + 1, group);
  __syncthreads();
  tile[0].write(a.to, a.rows, row0, col0);
  tile[1].write(a.to, a.rows, row0, col0 + kTile);
}

__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(TransposeArgs a, bool from_vector, bool to_vector) {
  __shared__ __align__(16) std::uint8_t tile[kTile][kTilePitch];
  const std::int64_t across = (a.cols + kTile - 1) / kTile;
  const std::int64_t row0 = blockIdx.x / across * kTile, col0 = blockIdx.x % across * kTile;
  const int r = threadIdx.x / 4, c = threadIdx.x % 4 * 16;
  const std::int64_t row = row0 + r, left = a.cols - col0 - c;
  if (row < a.rows && left > 0) {
    const std::uint8_t* from = a.from + row * a.cols + col0 + c;
    if (from_vector && left >= 16) {
      const uint4 bytes = *reinterpret_cast<const uint4*>(from);
      auto* to = reinterpret_cast<unsigned*>(&tile[r][c]);
      to[0] = bytes.x;
      to[1] = bytes.y;
      to[2] = bytes.z;
      to[3] = bytes.w;
    } else {
      for (int i = 0; i < 16 && i < left; ++i) tile[r][c + i] = from[i];
    }
  }
  __syncthreads();
  write_transposed(tile, a.to, a.rows, row0, col0, a.cols, to_vector);
}

// 1 / FLT_MAX is subnormal but not zero, so the inverse of any scale is finite.
__device__ float finite_scale(float scale) {
  return isinf(scale) ? FLT_MAX : scale;
}
__device__ float largest_of(std::uint8_t format) {
  return format == static_cast<std::uint8_t>(DType::e4m3) ? 448.0f : 57344.0f;
}

__global__ void current_scale_kernel(CurrentScaleArgs a) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i >= a.count) return;
  const float amax = a.amax[i];
  float scale = 1.0f;
  if (isfinite(amax) && amax > 0) scale = finite_scale(__fdiv_rn(largest_of(a.formats[i]), amax));
  a.scale[i] = scale;
  a.scale_inv[i * a.inverse_stride] = __fdiv_rn(1.0f, scale);
}

// One warp per tensor: its lanes share the history. A rolling pass reads all entries before it writes.
__global__ void delayed_scale_kernel(DelayedScaleArgs a) {
  const std::int64_t i = (blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (i >= a.count) return;
  const float latest = a.amax[i];
  __syncwarp();
  if (lane == 0) a.amax[i] = 0.0f;
  if (latest != 0) {  // also if NaN
    float most = 0.0f;
    for (std::int64_t k0 = 0; k0 + 1 < a.length; k0 += kWarp) {
      const std::int64_t k = k0 + lane;
      const bool moves = k + 1 < a.length;
      const float value = moves ? a.history[(k + 1) * a.stride + i] : 0.0f;
      __syncwarp();
      if (moves) a.history[k * a.stride + i] = value;
      most = fmaxf(most, value);
      __syncwarp();
    }
    // fmaxf ignores a NaN, like TransformerEngine.
    most = warp_reduce(most, [](float x, float y) { return fmaxf(x, y); });
    if (lane == 0) {
      a.history[(a.length - 1) * a.stride + i] = latest;
      const float amax = a.most_recent ? latest : fmaxf(most, latest);
      if (isfinite(amax) && amax > 0) {
        a.scale[i] = finite_scale(__fdiv_rn(ldexpf(largest_of(a.formats[i]), -a.margin), amax));
      }
    }
  }
  if (lane == 0) {
    const float inverse = __fdiv_rn(1.0f, a.scale[i]);
    float& out = a.scale_inv[i * a.inverse_stride];
    if (out != inverse) out = inverse;
  }
}

}  // namespace

void quantize(Stream& stream, const QuantizeArgs& a) {
  with_type(a.x.dtype, [&](auto type) {
    launch_tiles(stream, Loaded<decltype(type)>{a.x}, tile_out(a.into, a.x.rows, a.x.cols, 1), packs(a.x),
                 "quantize");
  });
}

void quantize_each(Stream& stream, const QuantizeEachArgs& a) {
  const QuantizeArgs first = matrix_of(a, 0);
  if (first.x.rows * first.x.cols == 0) return;
  const TileOut out = tile_out(first.into, first.x.rows, first.x.cols, 1);
  if (!packs(a.x) || !fits_tall(out)) {
    for (std::int64_t i = 0; i < a.count; ++i) {
      const QuantizeArgs one = matrix_of(a, i);
      a.skip == nullptr ? quantize(stream, one) : amax(stream, AmaxArgs{one.x, one.into.amax, a.skip});
    }
    return;
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(out.rows, kTallRows) * (out.cols / kTile)),
                  static_cast<unsigned>(a.count));
  const auto launch = [&](auto kernel, auto f) {
    kernel<<<grid, kTileThreads, 0, octet::cuda::native(stream)>>>(f, out, a.skip);
  };
  const bool full = out.rows % kTallRows == 0;
  with_type(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    const Loaded<T> f{first.x};
    if (out.fp8.e4m3) {
      full ? launch(each_kernel<T, true, true>, f) : launch(each_kernel<T, true, false>, f);
    } else {
      full ? launch(each_kernel<T, false, true>, f) : launch(each_kernel<T, false, false>, f);
    }
  });
  octet::cuda::check_launch("quantize_each");
}

void amax(Stream& stream, const AmaxArgs& a) {
  if (a.x.rows * a.x.cols == 0) return;
  with_type(a.x.dtype, [&](auto type) {
    amax_kernel<decltype(type)>
        <<<grid_of(stream, a.x.rows, 1), kAmaxThreads, 0, octet::cuda::native(stream)>>>(a, packs(a.x));
  });
  octet::cuda::check_launch("amax");
}

void transpose(Stream& stream, const TransposeArgs& a) {
  const std::int64_t tiles = ceil_div(a.rows, kTile) * ceil_div(a.cols, kTile);
  if (tiles == 0) return;
  const bool from_vector = a.cols % 16 == 0 && reinterpret_cast<std::uintptr_t>(a.from) % 16 == 0;
  const bool to_vector = a.rows % 16 == 0 && reinterpret_cast<std::uintptr_t>(a.to) % 16 == 0;
  if (from_vector && to_vector && a.cols % (2 * kTile) == 0) {
    const auto grid = static_cast<unsigned>(ceil_div(a.rows, kTallRows) * (a.cols / (2 * kTile)));
    tall_transpose_kernel<<<grid, kTileThreads, 0, octet::cuda::native(stream)>>>(a);
    octet::cuda::check_launch("transpose");
    return;
  }
  transpose_kernel<<<static_cast<unsigned>(tiles), kTileThreads, 0, octet::cuda::native(stream)>>>(
      a, from_vector, to_vector);
  octet::cuda::check_launch("transpose");
}

void current_scale(Stream& stream, const CurrentScaleArgs& a) {
  if (a.count == 0) return;
  current_scale_kernel<<<static_cast<unsigned>(ceil_div(a.count, 128)), 128, 0,
                         octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("current_scale");
}

void delayed_scale(Stream& stream, const DelayedScaleArgs& a) {
  if (a.count == 0) return;
  delayed_scale_kernel<<<static_cast<unsigned>(ceil_div(a.count * kWarp, 128)), 128, 0,
                         octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("delayed_scale");
}

}  // namespace octet::ops::cuda
