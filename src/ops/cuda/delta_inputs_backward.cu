#include "cuda/activations.cuh"
#include "cuda/delta_columns.cuh"
#include "cuda/delta_scratch.h"
#include "cuda/norm_rows.cuh"
#include "delta_gate_rule.h"
#include "octet/ops/delta_inputs.h"

namespace octet::ops::cuda {
namespace {

/// Threads of a block, and blocks of a multiprocessor.
constexpr int kThreads = 128, kBlocks = 4;
/// Channels of a thread, and tokens with loads in flight: 32 KiB of a multiprocessor in bf16.
constexpr int kWide = 4, kAtOnce = 4;

/// The tokens of a block: `count` tokens after `first`.
struct TokenPart {
  std::int64_t first = 0;
  int count = 0;
};

/// Computes the gradients of WIDTH channels for the tokens of a part. Writes their sums for the taps to
/// `sums` [WIDTH, kDeltaTaps] (null: not wanted). It reads kDeltaBefore tokens after the part, because they
/// also depend on the tokens of the part. When a token is used, the token kAtOnce later is loaded in its
/// place.
template <typename T, int WIDTH>
__device__ inline void convolve_part_backward(const DeltaInputsBackwardArgs& a, const TokenPart& part,
                                              std::int64_t channel, float* sums, bool vector_taps) {
  const std::int64_t first = part.first, end = first + part.count, rows = a.projected.rows;
  const int steps = part.count + kDeltaBefore;
  const int readable = rows - first < steps ? static_cast<int>(rows - first) : steps;
  const std::int64_t column = column_of_channel(a.columns, channel);
  const T* from_x = row_of<T>(a.projected, first) + column;
  const T* from_d = row_of<T>(a.d_qkv, first) + channel;
  T* to = row_of<T>(a.d_projected, first) + column;
  Channels<T, WIDTH> raw_x[kAtOnce], raw_d[kAtOnce];
  const auto load = [&](int i, int k) {
    if (i < readable) {
      raw_x[k].load(from_x);
      raw_d[k].load(from_d);
    }
    from_x += a.projected.ld;
    from_d += a.d_qkv.ld;
  };
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) load(k, k);
  float w[kDeltaTaps][WIDTH], d_taps[kDeltaTaps][WIDTH] = {};
  float before[kDeltaBefore][WIDTH] = {};
  float pending[kDeltaBefore][WIDTH] = {};  // gradients of the last tokens, which later tokens add to
  load_taps<WIDTH>(a.taps, channel, vector_taps, w);
  DocumentCursor document(a.documents.cu_seqlens, a.documents.count, first);
  load_before<T>(a.projected, document, first, column, before);
  // `inside`: the token and the kDeltaBefore tokens before it are in one document, and the token is in the
  // part.
  const auto step = [&](auto inside, int i, int k) {
    const std::int64_t t = first + i;
    float x[WIDTH] = {}, d[WIDTH] = {}, own[WIDTH] = {};
    if (inside.value || t < rows) {
      raw_x[k].get(x);
      raw_d[k].get(d);
    }
    load(i + kAtOnce, k);
    if (inside.value || (t < rows && document.move_to(t))) {
      if (!inside.value && t == document.begin) {
#pragma unroll
        for (int j = 0; j < kDeltaBefore; ++j) {
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) before[j][c] = 0.0f;
        }
      }
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) {
        float value, slope;
        Silu::both(sum_of_taps<WIDTH>(w, before, x, c), value, slope);
        d[c] *= slope;
        own[c] = d[c] * w[kDeltaBefore][c];
#pragma unroll
        for (int j = 0; j < kDeltaBefore; ++j) {
          // Token t - kDeltaBefore + j. Tokens of earlier documents get nothing.
          if (inside.value || t - kDeltaBefore + j >= document.begin) {
            pending[j][c] = __fmaf_rn(d[c], w[j][c], pending[j][c]);
          }
          if (inside.value || t < end) d_taps[j][c] = __fmaf_rn(d[c], before[j][c], d_taps[j][c]);
        }
        if (inside.value || t < end) {
          d_taps[kDeltaBefore][c] = __fmaf_rn(d[c], x[c], d_taps[kDeltaBefore][c]);
        }
      }
    } else {
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) x[c] = 0.0f;
    }
    if (i >= kDeltaBefore) {
      Channels<T, WIDTH> out;
      out.put(pending[0]);
      out.store(to);
      to += a.d_projected.ld;
    }
    shift_in<WIDTH>(before, x);
    shift_in<WIDTH>(pending, own);
  };
  for (int i = 0; i < steps; i += kAtOnce) {
    if (i + kAtOnce <= part.count && first + i - kDeltaBefore >= document.begin &&
        first + i + kAtOnce <= document.end) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) step(std::true_type{}, i + k, k);
    } else {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k < steps) step(std::false_type{}, i + k, k);
      }
    }
  }
  if (sums == nullptr) return;
  const bool vector = reinterpret_cast<std::uintptr_t>(sums) % sizeof(float4) == 0;
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) {
    const float4 four = make_float4(d_taps[0][c], d_taps[1][c], d_taps[2][c], d_taps[3][c]);
    if (vector) {
      reinterpret_cast<float4*>(sums)[c] = four;
    } else {
      float* const to_taps = sums + c * kDeltaTaps;
      to_taps[0] = four.x;
      to_taps[1] = four.y;
      to_taps[2] = four.z;
      to_taps[3] = four.w;
    }
  }
}

/// Partial sums of the parts.
struct PartSums {
  float* taps = nullptr;   ///< [parts, channels, kDeltaTaps]; null: not wanted
  float* a_log = nullptr;  ///< [parts, value_heads]
  float* bias = nullptr;   ///< [parts, value_heads]
};

constexpr int kGateRows = kThreads / kWarp;

/// Computes the gradients of a and b for the tokens of a part, and the sums of the part for a_log and
/// dt_bias. A warp has 32 heads of a token.
template <typename T>
__device__ inline void gates_part_backward(const DeltaInputsBackwardArgs& a, const TokenPart& part,
                                           float* a_log_sums, float* bias_sums) {
  __shared__ float sums[2][kGateRows][kWarp];
  const std::int64_t heads = a.columns.heads.value_heads;
  const std::int64_t used = a.documents.count == 0 ? 0 : a.documents.cu_seqlens[a.documents.count];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, own = static_cast<int>(threadIdx.x) / kWarp;
  for (std::int64_t from = 0; from < heads; from += kWarp) {
    const std::int64_t h = from + lane;
    float of_a_log = 0.0f, of_bias = 0.0f;
    if (h < heads) {
      const double rate = -exp(static_cast<double>(a.a_log[h]));
      const float bias = a.dt_bias[h];
      const std::int64_t column_a = a.columns.a(h), column_b = a.columns.b(h);
      for (int i = own; i < part.count; i += kGateRows) {
        const std::int64_t t = part.first + i;
        float d_a = 0.0f, d_b = 0.0f;
        if (t < used) {
          const T* const row = row_of<T>(a.projected, t);
          const float x = to_float(row[column_a]), b = to_float(row[column_b]);
          const double d_decay = static_cast<double>(a.d_log_decay[t * heads + h]);
          const double d_beta = static_cast<double>(a.d_beta[t * heads + h]);
          d_b = static_cast<float>(d_beta * delta_beta_slope(b));
          d_a = static_cast<float>(
              d_decay * (rate * delta_sigmoid(static_cast<double>(x) + static_cast<double>(bias))));
          of_a_log += static_cast<float>(d_decay * (rate * delta_softplus(x, bias)));
          of_bias += d_a;
        }
        T* const to = row_of<T>(a.d_projected, t);
        to[column_a] = narrow<T>(d_a);
        to[column_b] = narrow<T>(d_b);
      }
    }
    sums[0][own][lane] = of_a_log;
    sums[1][own][lane] = of_bias;
    __syncthreads();
    if (own < 2 && h < heads) {
      float total = 0.0f;
      for (int r = 0; r < kGateRows; ++r) total += sums[own][r][lane];
      (own == 0 ? a_log_sums : bias_sums)[h] = total;
    }
    __syncthreads();
  }
}

/// Block (`part` tokens, piece). The pieces of a part are pieces of the channels, and the gates. They follow
/// each other, so that blocks that run together read whole rows. A thread has WIDTH channels.
template <typename T, int WIDTH>
__global__ void __launch_bounds__(kThreads, kBlocks)
    delta_inputs_backward_kernel(DeltaInputsBackwardArgs a, unsigned pieces, std::int64_t part, PartSums sums,
                                 bool vector_taps) {
  const std::int64_t channels = a.columns.heads.qkv_width(), heads = a.columns.heads.value_heads;
  const unsigned piece = blockIdx.x % (pieces + 1);
  const std::int64_t index = blockIdx.x / (pieces + 1), first = index * part;
  const TokenPart own{first, static_cast<int>(min(part, a.projected.rows - first))};
  if (piece == pieces) {
    return gates_part_backward<T>(a, own, sums.a_log + index * heads, sums.bias + index * heads);
  }
  const std::int64_t channel = (std::int64_t{piece} * kThreads + threadIdx.x) * WIDTH;
  if (channel >= channels) return;
  float* const taps = sums.taps ? sums.taps + (index * channels + channel) * kDeltaTaps : nullptr;
  convolve_part_backward<T, WIDTH>(a, own, channel, taps, vector_taps);
}

/// Adds the partial sums of parts to the results that are wanted. Block: 32 columns of one result.
struct Results {
  static constexpr int count = 3;
  const float* from[count];
  std::int64_t columns[count];  ///< 0: not wanted
  float* to[count];
  static constexpr std::int64_t blocks_of(std::int64_t columns) { return (columns + kWarp - 1) / kWarp; }
};
__global__ void __launch_bounds__(kSumWarps* kWarp)
    add_part_sums_kernel(Results results, std::int64_t parts) {
  std::int64_t block = blockIdx.x;
#pragma unroll
  for (int i = 0; i < Results::count; ++i) {
    const std::int64_t blocks = Results::blocks_of(results.columns[i]);
    if (block >= 0 && block < blocks) {
      add_norm_sums(results.from[i], parts, results.columns[i], results.to[i], block);
    }
    block -= blocks;
  }
}

}  // namespace

void delta_inputs_backward(Stream& stream, const DeltaInputsBackwardArgs& a) {
  const std::int64_t channels = a.columns.heads.qkv_width(), heads = a.columns.heads.value_heads;
  const std::int64_t rows = a.projected.rows;
  if (rows == 0) return;
  const std::int64_t part = delta_inputs_block(rows), parts = ceil_div(rows, part);
  PartSums sums;
  sums.taps = static_cast<float*>(a.workspace.data);
  sums.a_log = sums.taps + parts * channels * kDeltaTaps;
  sums.bias = sums.a_log + parts * heads;
  const auto wanted = [](const float* to, std::int64_t columns) { return to ? columns : 0; };
  const Results results{.from = {sums.taps, sums.a_log, sums.bias},
                        .columns = {wanted(a.d_taps, channels * kDeltaTaps), wanted(a.d_a_log, heads),
                                    wanted(a.d_dt_bias, heads)},
                        .to = {a.d_taps, a.d_a_log, a.d_dt_bias}};
  if (a.d_taps == nullptr) sums.taps = nullptr;
  const cudaStream_t on = octet::cuda::native(stream);
  const auto aligned_rows = [&](const ConstMatrix& m) {
    const auto bytes = static_cast<std::int64_t>(size_of(m.dtype)) * kWide;
    return reinterpret_cast<std::uintptr_t>(m.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
           m.ld % kWide == 0;
  };
  const bool wide = aligned_rows(a.projected) && aligned_rows(a.d_qkv) && aligned_rows(a.d_projected);
  with_type(a.projected.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto width) {
      constexpr int kWidth = width.value;
      const std::int64_t pieces = ceil_div(ceil_div(channels, kWidth), kThreads);
      delta_inputs_backward_kernel<T, kWidth>
          <<<static_cast<unsigned>(parts * (pieces + 1)), kThreads, 0, on>>>(a, static_cast<unsigned>(pieces),
                                                                             part, sums, packs(a.taps));
    };
    if (wide) {
      launch(std::integral_constant<int, kWide>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
  octet::cuda::check_launch("delta_inputs_backward");
  std::int64_t blocks = 0;
  for (const std::int64_t columns : results.columns) blocks += Results::blocks_of(columns);
  if (blocks == 0) return;
  add_part_sums_kernel<<<static_cast<unsigned>(blocks), kSumWarps * kWarp, 0, on>>>(results, parts);
  octet::cuda::check_launch("delta_inputs_backward");
}

}  // namespace octet::ops::cuda
