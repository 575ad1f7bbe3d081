#include <algorithm>

#include "cuda/rows.cuh"
#include "cuda/tiles.cuh"
#include "nf4_rules.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// The values of scale codes, passed by value as a kernel argument.
struct ScaleMap {
  float value[256];
};
ScaleMap scale_map() {
  ScaleMap map;
  std::copy_n(nf4_scale_values(), 256, map.value);
  return map;
}

/// Returns the largest magnitude among the threads of a warp, in all of them.
__device__ inline float warp_most(float most) {
#pragma unroll
  for (int bit = 1; bit < kWarp; bit *= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, bit));
  return most;
}

/// One warp per block of 64 elements: a thread handles two elements, which are one byte of codes.
template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_kernel(Nf4QuantizeArgs a) {
  constexpr Nf4Table table;
  __shared__ Nf4Table shared;
  if (threadIdx.x < 16) shared.value[threadIdx.x] = table.value[threadIdx.x];
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t blocks = nf4_blocks(a.count);
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kThreads / kWarp);
  std::int64_t b = blockIdx.x * static_cast<std::int64_t>(kThreads / kWarp) + threadIdx.x / kWarp;
  for (; b < blocks; b += warps) {
    const std::int64_t i = b * kNf4Block + 2 * lane;
    const T* x = static_cast<const T*>(a.x);
    const float first = i < a.count ? to_float(x[i]) : 0.0f;
    const float second = i + 1 < a.count ? to_float(x[i + 1]) : 0.0f;
    const float most = warp_most(fmaxf(fabsf(first), fabsf(second)));
    if (lane == 0) a.scales[b] = most;
    const float reciprocal = 1.0f / most;
    if (i >= a.count) continue;
    const std::uint32_t upper = nf4_code(shared, first * reciprocal);
    const std::uint32_t lower = nf4_code(shared, second * reciprocal);
    a.codes[i / 2] = static_cast<std::uint8_t>(upper << 4 | lower);
  }
}

/// One thread block. Each thread sums runs of 256 scales; the sums are added in order.
__global__ void __launch_bounds__(kThreads) mean_kernel(Nf4QuantizeScalesArgs a) {
  __shared__ double runs[kThreads];
  double sum = 0;
  const std::int64_t count = ::octet::ops::nf4_scale_blocks(a.blocks * kNf4Block);
  for (std::int64_t first = 0; first < count; first += kThreads) {
    const std::int64_t begin = (first + threadIdx.x) * kNf4ScaleBlock;
    const std::int64_t end = begin + kNf4ScaleBlock < a.blocks ? begin + kNf4ScaleBlock : a.blocks;
    double run = 0;
    for (std::int64_t b = begin; b < end; ++b) run += a.scales[b];
    runs[threadIdx.x] = run;
    __syncthreads();
    for (int r = 0; threadIdx.x == 0 && r < kThreads && first + r < count; ++r) sum += runs[r];
    __syncthreads();
  }
  if (threadIdx.x == 0) *a.mean = static_cast<float>(sum / static_cast<double>(a.blocks));
}

/// One thread block per block of 256 scales.
__global__ void __launch_bounds__(kNf4ScaleBlock) scales_kernel(Nf4QuantizeScalesArgs a, ScaleMap map) {
  __shared__ ScaleMap shared;
  __shared__ float most_of[kNf4ScaleBlock / kWarp];
  shared.value[threadIdx.x] = map.value[threadIdx.x];
  const std::int64_t b = blockIdx.x * kNf4ScaleBlock + threadIdx.x;
  const float x = b < a.blocks ? a.scales[b] - *a.mean : 0.0f;
  float most = warp_most(fabsf(x));
  if (threadIdx.x % kWarp == 0) most_of[threadIdx.x / kWarp] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < static_cast<int>(kNf4ScaleBlock) / kWarp; ++w) most = fmaxf(most, most_of[w]);
  if (threadIdx.x == 0) a.nested[blockIdx.x] = most;
  const float reciprocal = 1.0f / most;
  if (b < a.blocks) a.codes[b] = static_cast<std::uint8_t>(nf4_scale_code(shared.value, x * reciprocal));
}

/// Lookup tables of a thread block. Each lane has its own copy of the 16 values in a separate bank, so
/// lookups of a warp have no bank conflicts.
struct Lookup {
  float value[16][kWarp];
  float scale[256];
  /// Called by all threads. It ends with a barrier.
  __device__ void fill(const Nf4Scales& scales, const ScaleMap& map) {
    constexpr Nf4Table table;
    for (int i = static_cast<int>(threadIdx.x); i < 16 * kWarp; i += kThreads) {
      value[i / kWarp][i % kWarp] = table.value[i / kWarp];
    }
    if (scales.plain == nullptr) scale[threadIdx.x] = map.value[threadIdx.x];
    __syncthreads();
  }
  __device__ float of(const Nf4Scales& s, std::int64_t block, float mean) const {
    return s.plain != nullptr ? s.plain[block]
                              : nf4_scale(scale[s.codes[block]], s.nested[block / kNf4ScaleBlock], mean);
  }
  /// Decodes eight elements from four bytes, with the first element in the upper half of the lowest byte.
  __device__ void pack(unsigned codes, float block_scale, float (&x)[kPack]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const unsigned code = codes >> (k / 2 * 8 + (k % 2 == 0 ? 4 : 0)) & 15u;
      x[k] = value[code][lane] * block_scale;
    }
  }
};

__device__ inline float mean_of(const Nf4Scales& s) {
  return s.plain == nullptr ? *s.mean : 0.0f;
}

constexpr int kAtOnce = 4;  ///< packs of a thread with loads in flight together

/// A pack is eight elements, or four bytes of codes.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(const __grid_constant__ Nf4DecodeArgs all, ScaleMap map, bool vector) {
  const Nf4DecodeArgs a = nth_of_series(all, blockIdx.y);
  __shared__ Lookup lookup;
  lookup.fill(a.scales, map);
  const float mean = mean_of(a.scales);
  constexpr std::int64_t chunk = static_cast<std::int64_t>(kThreads) * kPack * kAtOnce;
  for (std::int64_t first = blockIdx.x * chunk; first < a.count; first += gridDim.x * chunk) {
    unsigned codes[kAtOnce] = {};
    float scale[kAtOnce] = {};
    int n[kAtOnce];
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      const std::int64_t i = first + (p * kThreads + static_cast<std::int64_t>(threadIdx.x)) * kPack;
      const std::int64_t left = a.count - i, at = a.begin + i;
      n[p] = left < kPack ? static_cast<int>(left) : kPack;
      if (n[p] <= 0) continue;
      scale[p] = lookup.of(a.scales, at / kNf4Block, mean);
      if (vector && n[p] == kPack) {
        codes[p] = *reinterpret_cast<const unsigned*>(a.codes + at / 2);
      } else {
        for (int k = 0; k < (n[p] + 1) / 2; ++k)
          codes[p] |= static_cast<unsigned>(a.codes[at / 2 + k]) << (8 * k);
      }
    }
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      const std::int64_t i = first + (p * kThreads + static_cast<std::int64_t>(threadIdx.x)) * kPack;
      if (n[p] <= 0) continue;
      float x[kPack];
      lookup.pack(codes[p], scale[p], x);
      store_pack(static_cast<T*>(a.to) + i, x, n[p], vector && n[p] == kPack);
    }
  }
}

/// A tile has kTallRows rows and twice kTile columns, which are two NF4 blocks of a row. A thread converts
/// four rows of 16 elements. Columns are whole tiles; the last tile may lack rows.
template <typename T, bool e4m3>
__global__ void __launch_bounds__(kTileThreads)
    cast_tile_kernel(const __grid_constant__ Nf4ToFp8Args all, ScaleMap map) {
  const Nf4ToFp8Args a = nth_of_series(all, blockIdx.y);
  static_assert(kTileThreads == kThreads && kTile == kNf4Block);
  __shared__ Lookup lookup;
  __shared__ __align__(16) TallTile tile[2];
  lookup.fill(a.scales, map);
  const float mean = mean_of(a.scales), scale = *a.scale;
  const auto across = static_cast<unsigned>(a.cols / (2 * kTile));
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x / across) * kTallRows;
  const std::int64_t col0 = static_cast<std::int64_t>(blockIdx.x % across) * (2 * kTile);
  // Eight threads process 128 elements of a row. The 16 elements of a thread are two packs of one NF4 block.
  const int part = static_cast<int>(threadIdx.x) % 8, group = static_cast<int>(threadIdx.x) / 8;
  const std::int64_t row = row0 + group * kTallGroup, col = col0 + part * 16;
  uint2 codes[kTallGroup] = {};
  float of_block[kTallGroup] = {};
#pragma unroll
  for (int i = 0; i < kTallGroup; ++i) {
    if (row + i >= a.rows) continue;
    const std::int64_t at = (row + i) * a.cols + col;
    codes[i] = *reinterpret_cast<const uint2*>(a.codes + at / 2);
    of_block[i] = lookup.of(a.scales, at / kNf4Block, mean);
  }
  uint2 cast[2][kTallGroup] = {};
#pragma unroll
  for (int i = 0; i < kTallGroup; ++i) {
    if (row + i >= a.rows) continue;
    float x[kPack];
    lookup.pack(codes[i].x, of_block[i], x);
    round_pack<T>(x);
    cast[0][i] = to_fp8_pack(x, scale, e4m3);
    lookup.pack(codes[i].y, of_block[i], x);
    round_pack<T>(x);
    cast[1][i] = to_fp8_pack(x, scale, e4m3);
    if (a.row != nullptr) {
      *reinterpret_cast<uint4*>(a.row + (row + i) * a.cols + col) =
          make_uint4(cast[0][i].x, cast[0][i].y, cast[1][i].x, cast[1][i].y);
    }
  }
  if (a.transposed == nullptr) return;
  TallTile& mine = tile[part / 4];
  mine.put(cast[0], part % 4 * 2, group);
  mine.put(cast[1], part % 4 * 2 + 1, group);
  __syncthreads();
  const TallTile::Columns columns{a.rows, a.transposed_ld};
  tile[0].write(a.transposed, columns, row0, col0);
  tile[1].write(a.transposed, columns, row0, col0 + kTile);
}

/// Any shape, one element per thread.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(const __grid_constant__ Nf4ToFp8Args all, ScaleMap map) {
  const Nf4ToFp8Args a = nth_of_series(all, blockIdx.y);
  __shared__ Lookup lookup;
  lookup.fill(a.scales, map);
  const float mean = mean_of(a.scales), scale = *a.scale;
  const std::int64_t count = a.rows * a.cols, stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
       i += stride) {
    const unsigned both = a.codes[i / 2], code = i % 2 == 0 ? both >> 4 : both & 15u;
    const float x = lookup.value[code][threadIdx.x % kWarp] * lookup.of(a.scales, i / kNf4Block, mean);
    const std::uint8_t cast = to_fp8_device(rounded_to<T>(x) * scale, a.format == DType::e4m3);
    if (a.row != nullptr) a.row[i] = cast;
    if (a.transposed != nullptr) a.transposed[i % a.cols * a.transposed_ld + i / a.cols] = cast;
  }
}

bool on(const void* address, std::uintptr_t boundary) {
  return reinterpret_cast<std::uintptr_t>(address) % boundary == 0;
}

/// The tensors of a series, one for each row of the grid of thread blocks.
unsigned tensors_of(const Nf4Series& series) {
  return static_cast<unsigned>(series.tensors);
}

}  // namespace

void nf4_quantize(Stream& stream, const Nf4QuantizeArgs& a) {
  const unsigned grid = grid_of(stream, nf4_blocks(a.count), kThreads / kWarp);
  with_type(a.dtype, [&](auto type) {
    quantize_kernel<decltype(type)><<<grid, kThreads, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("nf4_quantize");
}

void nf4_quantize_scales(Stream& stream, const Nf4QuantizeScalesArgs& a) {
  mean_kernel<<<1, kThreads, 0, octet::cuda::native(stream)>>>(a);
  const auto grid = static_cast<unsigned>(ceil_div(a.blocks, kNf4ScaleBlock));
  scales_kernel<<<grid, kNf4ScaleBlock, 0, octet::cuda::native(stream)>>>(a, scale_map());
  octet::cuda::check_launch("nf4_quantize_scales");
}

void nf4_decode(Stream& stream, const Nf4DecodeArgs& a) {
  const dim3 grid(grid_of(stream, a.count, kThreads * kPack * kAtOnce), tensors_of(a.series));
  const bool vector = on(a.to, 16) && on(a.codes, 4) && a.series.elements % kPack == 0;
  with_type(a.dtype, [&](auto type) {
    decode_kernel<decltype(type)><<<grid, kThreads, 0, octet::cuda::native(stream)>>>(a, scale_map(), vector);
  });
  octet::cuda::check_launch("nf4_decode");
}

void nf4_to_fp8(Stream& stream, const Nf4ToFp8Args& a) {
  cudaStream_t queue = octet::cuda::native(stream);
  const bool turns = a.transposed == nullptr || (on(a.transposed, 16) && a.series.transposed % 16 == 0 &&
                                                 a.transposed_ld % 16 == 0 && a.rows % 16 == 0);
  const bool tiles =
      a.cols % (2 * kTile) == 0 && on(a.codes, 8) && on(a.row, 16) && a.series.elements % 16 == 0 && turns;
  const unsigned tensors = tensors_of(a.series);
  with_type(a.through, [&](auto type) {
    using T = decltype(type);
    if (!tiles) {
      const dim3 grid(grid_of(stream, a.rows * a.cols, kThreads), tensors);
      cast_kernel<T><<<grid, kThreads, 0, queue>>>(a, scale_map());
      return;
    }
    const dim3 grid(static_cast<unsigned>(ceil_div(a.rows, kTallRows) * (a.cols / (2 * kTile))), tensors);
    if (a.format == DType::e4m3) {
      cast_tile_kernel<T, true><<<grid, kTileThreads, 0, queue>>>(a, scale_map());
    } else {
      cast_tile_kernel<T, false><<<grid, kTileThreads, 0, queue>>>(a, scale_map());
    }
  });
  octet::cuda::check_launch("nf4_to_fp8");
}

}  // namespace octet::ops::cuda
