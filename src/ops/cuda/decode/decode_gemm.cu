// GEMMs of very few tokens, fused with the ops around them (decode_gemm.h). The weight is streamed once, by
// as many blocks as fit on the GPU. Each block processes its tiles of 16 outputs without a pause. It starts
// its first loads before the previous kernel has ended. Each block computes the ops before the GEMM itself,
// in shared memory, while those loads are in flight.
#include "octet/ops/decode_gemm.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/activations.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/mma.cuh"
#include "cuda/row_quantize.cuh"
#include "cuda/streamed_reads.cuh"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

bool has_decode_gemm(const Device& device, const DecodeGemmArgs& args);

namespace {

using End = DecodeGemmArgs::End;

constexpr int kTile = 16;    ///< outputs of a block at a time: the rows of a tensor-core step
constexpr int kColumns = 8;  ///< columns of the same step: capacity for tokens
constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kBlocks = 2;     ///< per multiprocessor
constexpr int kRunBytes = 64;  ///< bytes of a row that a warp loads at a time: 16 for each of four lanes
constexpr int kStride = kWarps * kRunBytes;
constexpr int kMostPacks = 2;  ///< packs of a row that a thread keeps for the norm
/// Padding in bytes between the rows of tokens in shared memory. Two rows that a quarter of a warp reads then
/// use different banks.
constexpr int kGap = 64;
/// Shared memory of a block, so that two blocks fit on a multiprocessor, with room for sums.
constexpr std::size_t kMostShared = 92 * 1024;

struct DecodeGemm {
  const std::uint8_t* weight;
  const float* weight_scales;  ///< null: the weight is in bf16
  const __nv_bfloat16* x;
  std::int64_t x_ld;
  const float* norm_weight;
  float eps, one;
  int norm_threads;  ///< threads per row in rms_norm, so that its sum has the same order
  const float* bias;
  const __nv_bfloat16* addend;
  std::int64_t addend_ld;
  __nv_bfloat16* y;
  std::int64_t y_ld;
  const std::int32_t* positions;
  const float *cosine, *sine;
  int rotated_heads, half_dim;
  bool gelu;
  int inner;        ///< values of a row
  int inner_bytes;  ///< bytes of a row of the weight
  int outputs, tokens, tiles;
};

/// Reads a pack that other blocks also read.
__device__ inline RawPack<__nv_bfloat16> read_pack(const __nv_bfloat16* from) {
  RawPack<__nv_bfloat16> pack;
  pack.word[0] = read_often(reinterpret_cast<const std::uint8_t*>(from));
  return pack;
}

/// The two runs of eight weight rows that form a tile.
template <End END>
struct TileRows {
  int first, second;
  __device__ TileRows(const DecodeGemm& a, int tile) {
    if constexpr (END == End::plain) {
      first = tile * kTile;
      second = first + kTile / 2;
    } else if constexpr (END == End::gated) {
      first = tile * (kTile / 2);
      second = first + a.outputs / 2;
    } else {
      const int parts = a.half_dim / (kTile / 2);
      first = tile / parts * 2 * a.half_dim + tile % parts * (kTile / 2);
      second = first + a.half_dim;
    }
  }
};

/// Stores values of a row in the operand format of the GEMM. `scale` applies to E4M3.
template <bool FP8>
__device__ inline void leave_pack(std::uint8_t* row, int col, const float (&y)[kPack], float scale) {
  if constexpr (FP8) {
    *reinterpret_cast<uint2*>(row + col) = to_fp8_pack(y, scale, true);
  } else {
    store_pack(reinterpret_cast<__nv_bfloat16*>(row) + col, y, kPack, true);
  }
}

/// Like block_reduce(), except that its separate buffer in shared memory makes one barrier sufficient.
template <typename V, typename Combine>
__device__ inline V reduce_once(V x, V (&shared)[kWarps], Combine combine) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  x = warp_reduce(x, combine);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return warp_reduce(lane < kWarps ? shared[lane] : V{}, combine);
}

/// Reduction buffers of a token.
struct Reduced {
  float squares[kWarps];
  unsigned most[kWarps];
};

/// Stores a token without a norm: quantized to E4M3, or copied.
template <bool FP8>
__device__ void take_token(const DecodeGemm& a, int token, std::uint8_t* row, float* scale_inv,
                           Reduced& reduced) {
  const __nv_bfloat16* x = a.x + token * a.x_ld;
  const auto each_pack = [&](auto&& act) {
    for (int col = static_cast<int>(threadIdx.x) * kPack; col < a.inner; col += kThreads * kPack) {
      float y[kPack];
      read_pack(x + col).get(y);
      act(col, y);
    }
  };
  float scale = 1.0f;
  if constexpr (FP8) {
    unsigned most = 0;
    each_pack([&](int, const float(&y)[kPack]) { raise_most(y, kPack, most); });
    const std::int32_t e = block_exponent(reduce_once(most, reduced.most, Max{}));
    if (threadIdx.x == 0) *scale_inv = power_of_two(e);
    scale = power_of_two(-e);
  }
  each_pack([&](int col, const float(&y)[kPack]) { leave_pack<FP8>(row, col, y, scale); });
}

/// Stores the norm of a token, computed as in rms_norm.
template <bool FP8>
__device__ void norm_token(const DecodeGemm& a, int token, std::uint8_t* row, float* scale_inv,
                           Reduced& reduced) {
  const __nv_bfloat16* x = a.x + token * a.x_ld;
  const int thread = static_cast<int>(threadIdx.x);
  const auto column = [&](int p) {
    const int col = (p * a.norm_threads + thread) * kPack;
    return thread < a.norm_threads && col < a.inner ? col : -1;
  };
  RawPack<__nv_bfloat16> raw[kMostPacks];
  float squares = 0.0f;
#pragma unroll
  for (int p = 0; p < kMostPacks; ++p) {
    const int col = column(p);
    if (col < 0) continue;
    raw[p] = read_pack(x + col);
    float values[kPack];
    raw[p].get(values);
#pragma unroll
    for (int i = 0; i < kPack; ++i) squares = __fmaf_rn(values[i], values[i], squares);
  }
  const float total = reduce_once(squares, reduced.squares, Plus{});
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, static_cast<float>(a.inner)) + a.eps));
  const auto normed = [&](int p, int col, float(&y)[kPack]) {
    float w[kPack];
    raw[p].get(y);
    load_pack(a.norm_weight + col, w, kPack, true);
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = y[i] * rstd * (w[i] + a.one);
    round_pack<__nv_bfloat16>(y);
  };
  float scale = 1.0f;
  if constexpr (FP8) {
    unsigned most = 0;
#pragma unroll
    for (int p = 0; p < kMostPacks; ++p) {
      const int col = column(p);
      if (col < 0) continue;
      float y[kPack];
      normed(p, col, y);
      raise_most(y, kPack, most);
    }
    const std::int32_t e = block_exponent(reduce_once(most, reduced.most, Max{}));
    if (thread == 0) *scale_inv = power_of_two(e);
    scale = power_of_two(-e);
  }
#pragma unroll
  for (int p = 0; p < kMostPacks; ++p) {
    const int col = column(p);
    if (col < 0) continue;
    float y[kPack];
    normed(p, col, y);
    leave_pack<FP8>(row, col, y, scale);
  }
}

/// The sums of a tile by the warps of a block. A pitch of 17 avoids bank conflicts of the four lanes of a
/// token.
using Sums = float[kWarps][kColumns][kTile + 1];

/// An output of a tile. Half a warp handles a token, and a thread one of its rows; rows i and i + 8 are
/// combined. The other inputs of an output are loaded before the tile is multiplied.
template <bool FP8, End END>
class Output {
 public:
  static_assert(kDecodeTokens * kTile <= kThreads, "a thread has one output at most");

  __device__ Output(const DecodeGemm& a, int tile)
      : token_(static_cast<int>(threadIdx.x) / kTile), row_(static_cast<int>(threadIdx.x) % kTile) {
    if (token_ >= a.tokens) return;
    const TileRows<END> rows(a, tile);
    output_ = (second() ? rows.second - kTile / 2 : rows.first) + row_;
    if constexpr (FP8) scale_ = a.weight_scales[output_];
    if (a.bias != nullptr) bias_ = a.bias[output_];
    if constexpr (END == End::plain) {
      if (a.addend != nullptr) addend_ = to_float(a.addend[token_ * a.addend_ld + output_]);
    } else if constexpr (END == End::rotated) {
      turns_ = output_ / (2 * a.half_dim) < a.rotated_heads;
      if (!turns_) return;
      const std::int64_t place =
          static_cast<std::int64_t>(a.positions[token_]) * a.half_dim + output_ % a.half_dim;
      cosine_ = a.cosine[place];
      sine_ = a.sine[place];
    }
  }

  __device__ void write(const DecodeGemm& a, const Sums& sums, const float* token_scales) const {
    // Whole warps, so that rows can be combined. The second half of the last warp may have no token.
    if (static_cast<int>(threadIdx.x) >= (a.tokens + 1) / 2 * 2 * kTile) return;
    float x = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += sums[w][token_][row_];
    if constexpr (FP8) x *= token_scales[token_] * scale_;
    if (a.bias != nullptr) x += bias_;
    const __nv_bfloat16 rounded = from_float<__nv_bfloat16>(x);
    const float mine = to_float(rounded), other = __shfl_xor_sync(0xFFFFFFFFu, mine, kTile / 2);
    if (token_ >= a.tokens) return;
    __nv_bfloat16* y = a.y + token_ * a.y_ld + output_;
    if constexpr (END == End::plain) {
      // The product is rounded first, which gives the bits of a separate addition.
      *y = a.addend == nullptr ? rounded : from_float<__nv_bfloat16>(mine + addend_);
    } else if constexpr (END == End::gated) {
      if (second()) return;
      float value, slope;
      if (a.gelu) {
        GeluTanh::both(mine, value, slope);
      } else {
        Silu::both(mine, value, slope);
      }
      *y = narrow<__nv_bfloat16>(value * other);
    } else {
      if (!turns_) {
        *y = rounded;
        return;
      }
      *y = narrow<__nv_bfloat16>(second() ? mine * cosine_ + other * sine_ : mine * cosine_ - other * sine_);
    }
  }

 private:
  __device__ bool second() const {
    return row_ >= kTile / 2;
  }

  int token_, row_, output_ = 0;
  float scale_ = 0, bias_ = 0, addend_ = 0, cosine_ = 0, sine_ = 0;
  bool turns_ = false;
};

/// RUNS: number of runs of both of its rows that a lane prefetches.
template <bool FP8, End END, int RUNS>
__global__ void __launch_bounds__(kThreads, kBlocks) decode_gemm_kernel(const DecodeGemm a) {
  __shared__ Sums sums[2];
  __shared__ Reduced reduced[kDecodeTokens];
  __shared__ float token_scales[kColumns];
  std::uint8_t* const tokens = dynamic_shared();
  const int pitch = a.inner * (FP8 ? 1 : 2) + kGap;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, column = warp * kRunBytes + lane % 4 * 16;
  // Runs of this warp in a row, and the loop count, which is equal for all warps. Missing runs are zero.
  const int runs = (a.inner_bytes / kRunBytes - warp + kWarps - 1) / kWarps;
  const int counted = (a.inner_bytes + kStride * RUNS - 1) / (kStride * RUNS) * RUNS;
  const std::uint8_t *weight[2], *next[2];
  const auto find = [&](int tile, const std::uint8_t*(&at)[2]) {
    const TileRows<END> rows(a, tile);
    at[0] = a.weight + static_cast<std::int64_t>(rows.first + row) * a.inner_bytes + column;
    at[1] = a.weight + static_cast<std::int64_t>(rows.second + row) * a.inner_bytes + column;
  };
  uint4 ahead[RUNS][2];
  const auto ask = [&](uint4(&to)[2], const std::uint8_t* const(&from)[2], int run) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to[half] = run < runs ? read_once(from[half] + run * kStride) : make_uint4(0, 0, 0, 0);
    }
  };
  let_next_begin();
  // The weight does not depend on earlier kernels.
  find(static_cast<int>(blockIdx.x), weight);
#pragma unroll
  for (int i = 0; i < RUNS; ++i) ask(ahead[i], weight, i);
  if (a.norm_weight != nullptr) {
    for (int i = static_cast<int>(threadIdx.x) * 32; i < a.inner; i += kThreads * 32) {
      prefetch(a.norm_weight + i);
    }
  }
  wait_for_previous();
  for (int token = 0; token < a.tokens; ++token) {
    std::uint8_t* const to = tokens + token * pitch;
    if (a.norm_weight != nullptr) {
      norm_token<FP8>(a, token, to, token_scales + token, reduced[token]);
    } else {
      take_token<FP8>(a, token, to, token_scales + token, reduced[token]);
    }
  }
  __syncthreads();
  const std::uint8_t* const mine = tokens + row * pitch + column;
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < a.tiles; tile += static_cast<int>(gridDim.x)) {
    const bool more = tile + static_cast<int>(gridDim.x) < a.tiles;
    find(more ? tile + static_cast<int>(gridDim.x) : tile, next);
    const Output<FP8, END> output(a, tile);
    float sum[4] = {};
    for (int first = 0; first < counted; first += RUNS) {
#pragma unroll
      for (int i = 0; i < RUNS; ++i) {
        const int run = first + i;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < a.tokens && run < runs) x = *reinterpret_cast<const uint4*>(mine + run * kStride);
        const uint4 low = ahead[i][0], high = ahead[i][1];
        const std::uint32_t step_0[4] = {low.x, high.x, low.y, high.y};
        const std::uint32_t step_1[4] = {low.z, high.z, low.w, high.w};
        if constexpr (FP8) {
          multiply_add_e4m3(sum, step_0, x.x, x.y);
          multiply_add_e4m3(sum, step_1, x.z, x.w);
        } else {
          multiply_add(sum, step_0, x.x, x.y);
          multiply_add(sum, step_1, x.z, x.w);
        }
        if (run + RUNS < counted) {
          ask(ahead[i], weight, run + RUNS);
        } else if (more) {
          ask(ahead[i], next, run + RUNS - counted);
        }
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[turn][warp][lane % 4 * 2 + e % 2][row + e / 2 * 8] = sum[e];
    // Threads that read the other half of the sums have finished before they arrive here.
    __syncthreads();
    output.write(a, sums[turn], token_scales);
    turn ^= 1;
    weight[0] = next[0];
    weight[1] = next[1];
  }
}

/// Returns the threads per row in rms_norm.
int norm_threads(std::int64_t cols) {
  const std::int64_t packs = ceil_div(cols, kPack);
  const std::int64_t each = packs > kThreads ? 2 : 1;
  return static_cast<int>(ceil_div(ceil_div(packs, each), kWarp)) * kWarp;
}

std::size_t shared_bytes(const DecodeGemmArgs& a) {
  return static_cast<std::size_t>(a.x.rows) *
         (static_cast<std::size_t>(a.x.cols) * size_of(a.weight.dtype) + kGap);
}

template <bool FP8, End END>
void launch(Stream& stream, const DecodeGemm& args, std::size_t bytes) {
  // More prefetched runs, one block fewer, and a prefetch of the weight to the cache are all slower (measured
  // on an H100).
  constexpr int RUNS = 2;
  const auto kernel = decode_gemm_kernel<FP8, END, RUNS>;
  octet::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kMostShared)),
                     "cudaFuncSetAttribute");
  const auto places = static_cast<int>(octet::cuda::properties(stream.device()).multiprocessors) * kBlocks;
  launch_early(kernel, dim3(static_cast<unsigned>(std::min(args.tiles, places))), kThreads, bytes,
               octet::cuda::native(stream), "decode_gemm", args);
}

template <bool FP8>
void launch_end(Stream& stream, End end, const DecodeGemm& args, std::size_t bytes) {
  switch (end) {
    case End::plain:
      return launch<FP8, End::plain>(stream, args, bytes);
    case End::gated:
      return launch<FP8, End::gated>(stream, args, bytes);
    case End::rotated:
      return launch<FP8, End::rotated>(stream, args, bytes);
  }
}

}  // namespace

bool has_decode_gemm(const Device&, const DecodeGemmArgs& a) {
  const Operand& w = a.weight;
  const bool fp8 = w.dtype == DType::e4m3;
  const std::int64_t outputs = w.rows, inner = w.cols;
  const std::int64_t row_bytes = inner * static_cast<std::int64_t>(size_of(w.dtype));
  // Each block quantizes all tokens. From three tokens on, a single separate kernel for this is faster.
  if (fp8 && a.x.rows > 2) return false;
  if (outputs >= (std::int64_t{1} << 30) || inner >= (std::int64_t{1} << 29)) return false;
  if (outputs % kTile != 0 || row_bytes % kRunBytes != 0 || row_bytes < kStride || inner % kPack != 0) {
    return false;
  }
  if (a.norm_weight != nullptr &&
      (inner > std::int64_t{kThreads} * kPack * kMostPacks || !packs(a.norm_weight))) {
    return false;
  }
  if (a.end == End::rotated && a.heads.head_dim % kTile != 0) return false;
  if (!packs(a.x) || reinterpret_cast<std::uintptr_t>(w.data) % 16 != 0) return false;
  if (shared_bytes(a) > kMostShared) return false;
  return octet::cuda::code_here() >= (fp8 ? 89 : 80);
}

void decode_gemm(Stream& stream, const DecodeGemmArgs& a) {
  const bool fp8 = a.weight.dtype == DType::e4m3;
  const DecodeGemm args{
      .weight = static_cast<const std::uint8_t*>(a.weight.data),
      .weight_scales = fp8 ? a.weight.scale_inv : nullptr,
      .x = static_cast<const __nv_bfloat16*>(a.x.data),
      .x_ld = a.x.ld,
      .norm_weight = a.norm_weight,
      .eps = a.eps,
      .one = a.one_plus_weight ? 1.0f : 0.0f,
      .norm_threads = norm_threads(a.x.cols),
      .bias = a.bias,
      .addend = static_cast<const __nv_bfloat16*>(a.addend.data),
      .addend_ld = a.addend.ld,
      .y = static_cast<__nv_bfloat16*>(a.y.data),
      .y_ld = a.y.ld,
      .positions = a.positions,
      .cosine = a.cosine,
      .sine = a.sine,
      .rotated_heads = static_cast<int>(a.heads.q_heads + a.heads.kv_heads),
      .half_dim = static_cast<int>(a.heads.head_dim / 2),
      .gelu = a.activation == Activation::gelu_tanh,
      .inner = static_cast<int>(a.weight.cols),
      .inner_bytes = static_cast<int>(a.weight.cols) * static_cast<int>(size_of(a.weight.dtype)),
      .outputs = static_cast<int>(a.weight.rows),
      .tokens = static_cast<int>(a.x.rows),
      .tiles = static_cast<int>(a.weight.rows) / kTile};
  fp8 ? launch_end<true>(stream, a.end, args, shared_bytes(a))
      : launch_end<false>(stream, a.end, args, shared_bytes(a));
}

}  // namespace octet::ops::cuda
