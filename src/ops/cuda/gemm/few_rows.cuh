// A GEMM of few tokens reads its weight once and does little else: this kernel streams the rows of the weight
// through tensor cores, whose 16 rows they fill, with tokens as the columns.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/early_launch.cuh"
#include "cuda/mma.cuh"

namespace octet::ops::cuda {

/// D [tokens, outputs] = factor * A · Bᵀ + bias + addend, with A [tokens, inner] and B [outputs, inner] in
/// bf16, rows on 16-byte boundaries, inner a multiple of 32.
struct FewRows {
  const __nv_bfloat16* a;
  const __nv_bfloat16* b;
  void* d;
  const void* addend;  ///< as D lies, or null; D itself adds to D
  const float* bias;   ///< [outputs], or null
  std::int64_t a_ld, b_ld, d_ld;
  std::int64_t inner;
  int tokens, outputs;
  float factor;
};

/// A block makes 16 * WEIGHT_TILES outputs of up to 8 * TOKEN_TILES tokens. Its warps take turns along the
/// inner dimension, so that together they read whole lines of memory; at the end their sums are added in
/// order.
template <int WEIGHT_TILES_, int TOKEN_TILES_, int AHEAD_>
struct FewRowsCut {
  static constexpr int WEIGHT_TILES = WEIGHT_TILES_;
  static constexpr int TOKEN_TILES = TOKEN_TILES_;
  static constexpr int WARPS = 8;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int OUTPUTS = 16 * WEIGHT_TILES;
  static constexpr int TOKENS = 8 * TOKEN_TILES;
  static constexpr int AHEAD = AHEAD_;  ///< chunks of 32 values that a warp asks for at once
};

/// 16 bytes that nobody reads again.
__device__ inline uint4 read_once(const __nv_bfloat16* from) {
  return __ldcs(reinterpret_cast<const uint4*>(from));
}
/// 16 bytes that others read, too. Not by way of the read-only cache: the kernel that wrote them may have been
/// running when this one began.
__device__ inline uint4 read_often(const __nv_bfloat16* from) {
  return *reinterpret_cast<const uint4*>(from);
}

__device__ inline float as_float(float x) {
  return x;
}
__device__ inline float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline void store_float(float& to, float x) {
  to = x;
}
__device__ inline void store_float(__nv_bfloat16& to, float x) {
  to = __float2bfloat16_rn(x);
}

/// Block: OUTPUTS rows of B. A lane reads eight values of a row at a time and takes them as two and two of
/// both halves of two tensor core steps. Tokens are read in the same order, so that every value meets its
/// own.
template <typename C, typename T>
__global__ void __launch_bounds__(C::THREADS) few_rows_kernel(const FewRows args) {
  __shared__ float sums[C::WARPS][C::TOKENS][C::OUTPUTS];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * C::OUTPUTS;
  const int row = lane / 4, column = lane % 4 * 8;
  const __nv_bfloat16* weights[C::WEIGHT_TILES][2];
#pragma unroll
  for (int w = 0; w < C::WEIGHT_TILES; ++w) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows behind the last one repeat it; nobody writes what comes of them.
      const int output = min(first + 16 * w + 8 * half + row, args.outputs - 1);
      weights[w][half] = args.b + output * args.b_ld + column;
    }
  }
  const __nv_bfloat16* tokens[C::TOKEN_TILES];
#pragma unroll
  for (int t = 0; t < C::TOKEN_TILES; ++t) {
    tokens[t] = args.a + min(8 * t + row, args.tokens - 1) * args.a_ld + column;
  }
  float all[C::WEIGHT_TILES][C::TOKEN_TILES][4];
#pragma unroll
  for (int w = 0; w < C::WEIGHT_TILES; ++w) {
#pragma unroll
    for (int t = 0; t < C::TOKEN_TILES; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) all[w][t][e] = 0.0f;
    }
  }
  // What the first chunks of all warps will read of the weight, a line of memory a thread.
  constexpr int LINE = 64;  // values
  constexpr int LINES = C::WARPS * C::AHEAD * 32 / LINE;
  for (int i = static_cast<int>(threadIdx.x); i < C::OUTPUTS * LINES; i += C::THREADS) {
    const int output = first + i / LINES, at = i % LINES * LINE;
    if (output < args.outputs && at < args.inner) prefetch(args.b + output * args.b_ld + at);
  }
  wait_for_previous();
  const int chunks = static_cast<int>(args.inner / 32);
  for (int chunk = warp; chunk < chunks; chunk += C::WARPS * C::AHEAD) {
    uint4 b[C::AHEAD][C::WEIGHT_TILES][2], a[C::AHEAD][C::TOKEN_TILES];
#pragma unroll
    for (int i = 0; i < C::AHEAD; ++i) {
      const int at = chunk + i * C::WARPS;
      if (at >= chunks) continue;
#pragma unroll
      for (int w = 0; w < C::WEIGHT_TILES; ++w) {
        b[i][w][0] = read_once(weights[w][0] + static_cast<std::int64_t>(at) * 32);
        b[i][w][1] = read_once(weights[w][1] + static_cast<std::int64_t>(at) * 32);
      }
#pragma unroll
      for (int t = 0; t < C::TOKEN_TILES; ++t) {
        a[i][t] = read_often(tokens[t] + static_cast<std::int64_t>(at) * 32);
      }
    }
#pragma unroll
    for (int i = 0; i < C::AHEAD; ++i) {
      if (chunk + i * C::WARPS >= chunks) continue;
#pragma unroll
      for (int w = 0; w < C::WEIGHT_TILES; ++w) {
        const uint4 upper = b[i][w][0], lower = b[i][w][1];
        const std::uint32_t first_step[4] = {upper.x, lower.x, upper.y, lower.y};
        const std::uint32_t second_step[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
        for (int t = 0; t < C::TOKEN_TILES; ++t) {
          multiply_add(all[w][t], first_step, a[i][t].x, a[i][t].y);
          multiply_add(all[w][t], second_step, a[i][t].z, a[i][t].w);
        }
      }
    }
  }
#pragma unroll
  for (int w = 0; w < C::WEIGHT_TILES; ++w) {
#pragma unroll
    for (int t = 0; t < C::TOKEN_TILES; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[warp][8 * t + lane % 4 * 2 + e % 2][16 * w + row + 8 * (e / 2)] = all[w][t][e];
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < C::TOKENS * C::OUTPUTS; i += C::THREADS) {
    const int token = i / C::OUTPUTS, at = i % C::OUTPUTS, output = first + at;
    if (token >= args.tokens || output >= args.outputs) continue;
    float x = 0.0f;
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) x += sums[w][token][at];
    x *= args.factor;
    if (args.bias != nullptr) x += args.bias[output];
    const std::int64_t place = token * args.d_ld + output;
    if (args.addend != nullptr) x += as_float(static_cast<const T*>(args.addend)[place]);
    store_float(static_cast<T*>(args.d)[place], x);
  }
}

}  // namespace octet::ops::cuda
