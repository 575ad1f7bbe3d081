#include <algorithm>

#include "cuda/rows.cuh"
#include "nf4_rules.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// The values of scales, by value among a kernel's arguments.
struct ScaleMap {
  float value[256];
};
ScaleMap scale_map() {
  ScaleMap map;
  std::copy_n(nf4_scale_values(), 256, map.value);
  return map;
}

/// The largest magnitude among the threads of a warp, in all of them.
__device__ inline float warp_most(float most) {
#pragma unroll
  for (int bit = 1; bit < kWarp; bit *= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, bit));
  return most;
}

/// A warp to a block of 64: two elements, one byte of codes, a thread.
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

/// One block of threads. Each thread sums runs of 256 scales; the sums are added in order.
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

/// A block of threads to a block of 256 scales.
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

/// Eight elements, four bytes of codes, a thread at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) decode_kernel(Nf4DecodeArgs a, ScaleMap map, bool vector) {
  constexpr Nf4Table table;
  __shared__ float value[16];
  __shared__ ScaleMap shared;
  if (threadIdx.x < 16) value[threadIdx.x] = table.value[threadIdx.x];
  if (a.scales.plain == nullptr) shared.value[threadIdx.x] = map.value[threadIdx.x];
  __syncthreads();
  const float mean = a.scales.plain == nullptr ? *a.scales.mean : 0.0f;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads * kPack;
  for (std::int64_t i = (blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x) * kPack; i < a.count;
       i += stride) {
    const std::int64_t left = a.count - i;
    const int n = left < kPack ? static_cast<int>(left) : kPack;
    const std::int64_t at = a.begin + i, block = at / kNf4Block;
    const float scale = a.scales.plain != nullptr ? a.scales.plain[block]
                                                  : nf4_scale(shared.value[a.scales.codes[block]],
                                                              a.scales.nested[block / kNf4ScaleBlock], mean);
    const bool whole = vector && n == kPack;
    alignas(4) std::uint8_t codes[kPack / 2] = {};
    if (whole) {
      *reinterpret_cast<std::uint32_t*>(codes) = *reinterpret_cast<const std::uint32_t*>(a.codes + at / 2);
    } else {
      for (int k = 0; k < (n + 1) / 2; ++k) codes[k] = a.codes[at / 2 + k];
    }
    float x[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      x[k] = value[k % 2 == 0 ? codes[k / 2] >> 4 : codes[k / 2] & 15] * scale;
    }
    store_pack(static_cast<T*>(a.to) + i, x, n, whole);
  }
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
  const unsigned grid = grid_of(stream, a.count, kThreads * kPack);
  const bool vector =
      reinterpret_cast<std::uintptr_t>(a.to) % 16 == 0 && reinterpret_cast<std::uintptr_t>(a.codes) % 4 == 0;
  with_type(a.dtype, [&](auto type) {
    decode_kernel<decltype(type)><<<grid, kThreads, 0, octet::cuda::native(stream)>>>(a, scale_map(), vector);
  });
  octet::cuda::check_launch("nf4_decode");
}

}  // namespace octet::ops::cuda
