// GEMMs of few tokens that stream the weight through shared memory. A tile is 64 outputs of all tokens. The
// tiles are cut into runs of the inner dimension. The runs of all tiles are numbered tile by tile and split
// among as many blocks as there are multiprocessors. So all blocks read equally many bytes of the weight, for
// any shape ("Stream-K", Osama et al., arXiv:2301.03598).
//
// The block with the first runs of a tile adds the sums of the other blocks in order, and writes the tile.
// Each thread does this separately. The last tiles of all blocks end at the same time, and nothing hides the
// latency of waiting there. One warp loads the data that the others multiply, as many runs ahead as the ring
// holds. It loads the first runs of the weight before the previous kernel has ended.
#include "cuda/gemm/streamed.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/gemm/streamed_ring.cuh"
#include "cuda/scratch.h"
#include "cuda/tensor_map.h"
#include "gemm_plan.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {
namespace {

using namespace stream_k;

/// Up to this number of tokens, multiply_few_tokens() is equally fast, and its sums are entirely in fp32.
constexpr std::int64_t kTokensOfFullSums = 16;
/// In bf16, the library is equally fast up to the first number of tokens, and faster above the second.
constexpr std::int64_t kTokensOfTheLibrary = 8, kMostTokensInBf16 = 32;

/// Calls `act` with the token and the index of each sum of a thread that belongs to one of its two outputs.
template <typename C, typename Act>
__device__ inline void each_token(const Streamed& args, Act&& act) {
  const int first = static_cast<int>(threadIdx.x) % kWarp % 4 * 2;
#pragma unroll
  for (int i = 0; i < C::SUMS / 2; ++i) {
    const int token = i / 2 * 8 + first + i % 2;
    if (token < args.tokens) act(token, i);
  }
}

/// The two outputs of a thread for all tokens. The constructor loads their other inputs.
template <typename C, typename T>
class Outputs {
 public:
  __device__ Outputs(const Streamed& args, int first_output)
      : args_(args),
        first_(first_output + static_cast<int>(threadIdx.x) / kWarp * 16 +
               static_cast<int>(threadIdx.x) % kWarp / 4) {
    if constexpr (C::FP8)
      each_token<C>(args, [&](int token, int i) { token_scales_[i] = args.a_scales[token]; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first_ + 8 * half;
      if (output >= args.outputs) continue;
      if constexpr (C::FP8) scales_[half] = args.b_scales[output];
      bias_[half] = args.bias != nullptr ? args.bias[output] : 0.0f;
      if (args.in_order) bias_[half] = to_float(from_float<T>(bias_[half]));
      if (args.addend == nullptr) continue;
      const T* const addend = static_cast<const T*>(args.addend) + output;
      each_token<C>(args, [&](int token, int i) { addend_[half][i] = addend[token * args.d_ld]; });
    }
  }

  __device__ void write(const float (&sums)[C::SUMS]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first_ + 8 * half;
      if (output >= args_.outputs) continue;
      T* const to = static_cast<T*>(args_.d) + output;
      each_token<C>(args_, [&](int token, int i) {
        float sum = sums[i / 2 * 4 + half * 2 + i % 2];
        sum *= C::FP8 ? scales_[half] * token_scales_[i] : args_.factor;
        sum += bias_[half];
        // The product is rounded first, as on a CPU, which gives the bits of a separate addition.
        if (!args_.adds_at_once) sum = to_float(from_float<T>(sum));
        if (args_.addend != nullptr) sum += to_float(addend_[half][i]);
        to[token * args_.d_ld] = from_float<T>(sum);
      });
    }
  }

 private:
  const Streamed& args_;
  int first_;
  float scales_[2] = {}, bias_[2] = {};
  float token_scales_[C::SUMS / 2];
  T addend_[2][C::SUMS / 2];
};

/// Computes a tile. This block has `count` of its runs, including the first.
template <typename C, typename T>
__device__ void make_tile(const Streamed& args, const Ring<C>& ring, Place<C>& place, int tile, int count,
                          int behind) {
  const Outputs<C, T> outputs(args, tile * kOutputs);
  float sums[C::SUMS];
  sum_runs<C>(ring, place, count, sums);
  add_partials<C>(args, static_cast<int>(blockIdx.x) + 1, behind, sums);
  outputs.write(sums);
}

template <typename C, typename T>
__global__ void __launch_bounds__(kThreads)
    streamed_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap tokens,
                    const Streamed args) {
  __shared__ Barrier filled[C::STAGES], emptied[C::STAGES];
  // The swizzle uses address bits, so the ring must be aligned to 1024 bytes.
  std::uint8_t* const shared = dynamic_shared();
  const Ring<C> ring{
      .data = shared + (1024 - shared_address(shared) % 1024) % 1024, .filled = filled, .emptied = emptied};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < C::STAGES; ++stage) {
      make_barrier(filled[stage], 1);
      make_barrier(emptied[stage], kGroupThreads / kWarp);
    }
    open_barriers();
  }
  __syncthreads();
  if (threadIdx.x >= kGroupThreads) {
    if (threadIdx.x == kGroupThreads) fill<C>(args, weight, tokens, ring);
    return;
  }
  wait_for_previous();
  const int end = first_run(args, static_cast<int>(blockIdx.x) + 1);
  Place<C> place;
  for (int run = first_run(args, static_cast<int>(blockIdx.x)); run < end;) {
    const int tile = run / args.runs, tile_end = (tile + 1) * args.runs;
    const int next = min(end, tile_end), count = next - run;
    if (run % args.runs == 0) {
      make_tile<C, T>(args, ring, place, tile, count, blocks_behind(args, next, tile_end));
    } else {
      float sums[C::SUMS];
      sum_runs<C>(ring, place, count, sums);
      leave_partials<C>(args, sums);
    }
    run = next;
  }
}

template <typename C, typename T>
bool launch(Stream& stream, const GemmArgs& args, Streamed streamed) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const std::int64_t row_bytes = b.cols * static_cast<std::int64_t>(size_of(b.dtype));
  const std::int64_t runs = ceil_div(row_bytes, std::int64_t{kRowBytes} * C::WIDTH);
  const std::int64_t tiles = ceil_div(b.rows, kOutputs);
  if (runs * tiles >= most) return false;
  const std::int64_t blocks = std::min<std::int64_t>(octet::cuda::properties(stream.device()).multiprocessors,
                                                     streamed.in_order ? tiles : runs * tiles);
  if (blocks * kGroupThreads * C::SUMS > octet::cuda::kExchangeWords) return false;
  streamed.runs = static_cast<int>(runs);
  streamed.tiles = static_cast<int>(tiles);
  const CUtensorMap weight =
      tensor_map({.data = b.data, .rows = b.rows, .bytes = row_bytes, .tile_rows = kOutputs});
  const CUtensorMap tokens =
      tensor_map({.data = a.data, .rows = a.rows, .bytes = row_bytes, .tile_rows = C::TOKENS});
  octet::cuda::check(cudaFuncSetAttribute(streamed_kernel<C, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(C::SHARED_BYTES)),
                     "cudaFuncSetAttribute");
  launch_early(streamed_kernel<C, T>, dim3(static_cast<unsigned>(blocks)), kThreads, C::SHARED_BYTES,
               octet::cuda::native(stream), "gemm", weight, tokens, streamed);
  return true;
}

template <typename C>
bool launch(Stream& stream, const GemmArgs& args, const Streamed& streamed) {
  return args.d.dtype == DType::f32 ? launch<C, float>(stream, args, streamed)
                                    : launch<C, __nv_bfloat16>(stream, args, streamed);
}

bool dense(std::int64_t ld, const Operand& operand) {
  return ld == 0 || ld == operand.cols;
}

/// Conditions for both dtypes and for any summation order. Hopper only: code for other GPUs has no warpgroup
/// instructions.
bool may_stream(const GemmArgs& args) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  return args.gemm_kind == GemmKind::forward && args.b_stands && !args.accumulate && a.dtype == b.dtype &&
         a.rows <= kStreamedTokens && b.rows > 0 && a.cols > 0 && on_boundary(a.data) &&
         on_boundary(b.data) && octet::cuda::code_here() == 90;
}

bool bf16_may_stream(const GemmArgs& args) {
  const Operand& a = args.a;
  return a.dtype == DType::bf16 && a.cols % 8 == 0 && dense(args.a_ld, a) && dense(args.b_ld, args.b);
}

bool fits(const GemmArgs& args) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  if (!may_stream(args)) return false;
  if (a.dtype == DType::e4m3) {
    return a.scaling == Scaling::whole_rows && b.scaling == Scaling::whole_rows &&
           a.rows > kTokensOfFullSums && a.cols % 16 == 0;
  }
  return bf16_may_stream(args) && a.rows > kTokensOfTheLibrary && a.rows <= kMostTokensInBf16 &&
         !args.fixed_order;
}

Streamed streamed_of(const GemmArgs& args) {
  return {.a_scales = args.a.scale_inv,
          .b_scales = args.b.scale_inv,
          .bias = args.bias,
          .d = args.d.data,
          .addend = args.addend.data,
          .d_ld = args.d.ld,
          .tokens = static_cast<int>(args.a.rows),
          .outputs = static_cast<int>(args.b.rows),
          .factor = args.factor};
}

}  // namespace

bool multiply_streamed_in_order(Stream& stream, const GemmArgs& args, Addition addition) {
  if (!may_stream(args) || !bf16_may_stream(args) || args.factor != 1.0f) return false;
  Streamed streamed = streamed_of(args);
  streamed.in_order = true;
  streamed.adds_at_once = addition == Addition::at_once;
  if (args.a.rows <= 16) return launch<Cut<false, 16, 2, 4>>(stream, args, streamed);
  if (args.a.rows <= 32) return launch<Cut<false, 32, 2, 5>>(stream, args, streamed);
  return launch<Cut<false, 64, 1, 7>>(stream, args, streamed);
}

bool multiply_streamed(Stream& stream, const GemmArgs& args) {
  if (!fits(args)) return false;
  Streamed streamed = streamed_of(args);
  streamed.exchange = reinterpret_cast<uint4*>(octet::cuda::exchange(stream));
  if (args.a.dtype == DType::e4m3) {
    return args.a.rows <= 32 ? launch<Cut<true, 32, 2, 5>>(stream, args, streamed)
                             : launch<Cut<true, 64, 1, 7>>(stream, args, streamed);
  }
  return args.a.rows <= 16 ? launch<Cut<false, 16, 2, 4>>(stream, args, streamed)
                           : launch<Cut<false, 32, 2, 5>>(stream, args, streamed);
}

}  // namespace octet::ops::cuda
