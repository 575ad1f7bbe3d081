#include "cuda/gemm/few_tokens.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/early_launch.cuh"
#include "cuda/mma.cuh"
#include "cuda/rows.cuh"
#include "cuda/streamed_reads.cuh"
#include "gemm_plan.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {
namespace {

constexpr int kOutputs = 16;   ///< outputs of a block: the rows of a tensor-core step
constexpr int kTokenTile = 8;  ///< tokens of a step: its columns
constexpr int kRun = 64;       ///< values of a row that a warp loads at a time

struct FewTokens {
  const std::uint8_t* a;  ///< [tokens, inner]
  const std::uint8_t* b;  ///< [outputs, inner]
  const float* a_scales;  ///< [tokens]
  const float* b_scales;  ///< [outputs]
  void* d;                ///< [tokens, d_ld], T
  const void* addend;     ///< in the layout of D, or null
  const float* bias;      ///< [outputs], or null
  std::int64_t d_ld;
  int inner;
  int tokens, outputs;
};

/// Tile sizes. Measured on an H200: its memory is busiest with many bytes of few rows in flight. RUNS:
/// number of runs of both of its rows that a thread prefetches. BLOCKS: blocks per multiprocessor.
template <int TOKEN_TILES_, int WARPS_, int RUNS_, int BLOCKS_>
struct Cut {
  static constexpr int TOKEN_TILES = TOKEN_TILES_;
  static constexpr int WARPS = WARPS_;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int RUNS = RUNS_;
  static constexpr int BLOCKS = BLOCKS_;
  static constexpr int TOKENS = kTokenTile * TOKEN_TILES;
};

/// The sums of the warps of a block, and the resulting outputs. A pitch of 17 avoids bank conflicts of the
/// four lanes of a token.
template <typename C>
using Sums = float[C::WARPS][C::TOKENS][kOutputs + 1];

template <typename C, typename T>
__device__ void write_outputs(const FewTokens& args, const Sums<C>& sums) {
  const int first = static_cast<int>(blockIdx.x) * kOutputs;
  for (int i = static_cast<int>(threadIdx.x); i < C::TOKENS * kOutputs; i += C::THREADS) {
    const int token = i / kOutputs, output = first + i % kOutputs;
    if (token >= args.tokens || output >= args.outputs) continue;
    float x = 0.0f;
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) x += sums[w][token][i % kOutputs];
    x *= args.a_scales[token] * args.b_scales[output];
    if (args.bias != nullptr) x += args.bias[output];
    const std::int64_t at = token * args.d_ld + output;
    T result = from_float<T>(x);
    // The product is rounded first, as on a CPU and in the library, which gives the bits of a separate
    // addition.
    if (args.addend != nullptr) {
      result = from_float<T>(to_float(result) + to_float(static_cast<const T*>(args.addend)[at]));
    }
    static_cast<T*>(args.d)[at] = result;
  }
}

/// A block computes 16 outputs of all tokens. Its warps take runs of 64 values of the inner dimension in
/// turn. A lane reads 16 values of a row at a time, which serve two tensor-core steps. The order of values in
/// the inner dimension differs from the instruction's order, but is the same for weight and tokens.
template <typename C, typename T>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) few_tokens_kernel(const FewTokens args) {
  __shared__ Sums<C> sums;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, column = warp * kRun + lane % 4 * 16;
  constexpr int STRIDE = C::WARPS * kRun;
  const int runs = (args.inner / kRun - warp + C::WARPS - 1) / C::WARPS;
  const std::uint8_t* weight[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Out-of-range rows re-read the last row; their results are discarded.
    const int output = min(static_cast<int>(blockIdx.x) * kOutputs + half * 8 + row, args.outputs - 1);
    weight[half] = args.b + static_cast<std::int64_t>(output) * args.inner + column;
  }
  let_next_begin();
  // The weight does not depend on earlier kernels.
  uint4 ahead[C::RUNS][2];
#pragma unroll
  for (int i = 0; i < C::RUNS; ++i) {
    if (i >= runs) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) ahead[i][half] = read_once(weight[half] + i * STRIDE);
  }
  wait_for_previous();
  const std::uint8_t* tokens[C::TOKEN_TILES];
#pragma unroll
  for (int t = 0; t < C::TOKEN_TILES; ++t) {
    const int token = min(t * kTokenTile + row, args.tokens - 1);
    tokens[t] = args.a + static_cast<std::int64_t>(token) * args.inner + column;
  }
  float sum[C::TOKEN_TILES][4] = {};
  for (int first = 0; first < runs; first += C::RUNS) {
#pragma unroll
    for (int i = 0; i < C::RUNS; ++i) {
      const int run = first + i;
      if (run >= runs) break;
      uint4 x[C::TOKEN_TILES];
#pragma unroll
      for (int t = 0; t < C::TOKEN_TILES; ++t) x[t] = read_often(tokens[t] + run * STRIDE);
      const uint4 low = ahead[i][0], high = ahead[i][1];
      const std::uint32_t step_0[4] = {low.x, high.x, low.y, high.y};
      const std::uint32_t step_1[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int t = 0; t < C::TOKEN_TILES; ++t) {
        multiply_add_e4m3(sum[t], step_0, x[t].x, x[t].y);
        multiply_add_e4m3(sum[t], step_1, x[t].z, x[t].w);
      }
      if (run + C::RUNS < runs) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ahead[i][half] = read_once(weight[half] + (run + C::RUNS) * STRIDE);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < C::TOKEN_TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[warp][t * kTokenTile + lane % 4 * 2 + e % 2][row + e / 2 * 8] = sum[t][e];
    }
  }
  __syncthreads();
  write_outputs<C, T>(args, sums);
}

template <typename C>
void launch(cudaStream_t stream, const FewTokens& args, DType type) {
  const dim3 blocks(static_cast<unsigned>((args.outputs + kOutputs - 1) / kOutputs));
  type == DType::f32
      ? launch_early(few_tokens_kernel<C, float>, blocks, C::THREADS, 0, stream, "gemm", args)
      : launch_early(few_tokens_kernel<C, __nv_bfloat16>, blocks, C::THREADS, 0, stream, "gemm", args);
}

}  // namespace

bool multiply_few_tokens(Stream& stream, const GemmArgs& args) {
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const Operand& a = args.a;
  const Operand& b = args.b;
  const bool fits = args.gemm_kind == GemmKind::forward && a.scaling == Scaling::whole_rows &&
                    b.scaling == Scaling::whole_rows && a.dtype == DType::e4m3 && b.dtype == DType::e4m3 &&
                    !args.accumulate && a.rows > 0 && a.rows <= kFewTokens && b.rows > 0 && b.rows < most &&
                    a.cols > 0 && a.cols < most && a.cols % kRun == 0 && on_boundary(a.data) &&
                    on_boundary(b.data);
  if (!fits || octet::cuda::code_here() < 89) return false;
  const FewTokens few{.a = static_cast<const std::uint8_t*>(a.data),
                      .b = static_cast<const std::uint8_t*>(b.data),
                      .a_scales = a.scale_inv,
                      .b_scales = b.scale_inv,
                      .d = args.d.data,
                      .addend = args.addend.data,
                      .bias = args.bias,
                      .d_ld = args.d.ld,
                      .inner = static_cast<int>(a.cols),
                      .tokens = static_cast<int>(a.rows),
                      .outputs = static_cast<int>(b.rows)};
  cudaStream_t native = octet::cuda::native(stream);
  if (few.tokens <= 8) {
    launch<Cut<1, 16, 2, 2>>(native, few, args.d.dtype);
  } else if (few.tokens <= 16) {
    launch<Cut<2, 8, 2, 3>>(native, few, args.d.dtype);
  } else {
    launch<Cut<4, 8, 2, 2>>(native, few, args.d.dtype);
  }
  return true;
}

}  // namespace octet::ops::cuda
