#include "cuda/activations.cuh"
#include "cuda/delta_columns.cuh"
#include "cuda/delta_scratch.h"
#include "cuda/norm_rows.cuh"
#include "delta_gate_rule.h"
#include "octet/ops/delta_inputs.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
/// Channels of a thread, and tokens with loads in flight together.
constexpr int kWide = 4, kAtOnce = 4;

/// Block (part of the tokens, channels). A thread has WIDTH channels and sums their gradients of taps over
/// its part in `partial` [parts, channels, kDeltaTaps] (null: not wanted). It reads kDeltaBefore tokens after
/// its part, because they also depend on the tokens of the part.
template <typename T, int WIDTH>
__global__ void __launch_bounds__(kThreads)
    delta_inputs_backward_kernel(DeltaInputsBackwardArgs a, std::int64_t channels, std::int64_t part,
                                 float* partial, bool vector_taps) {
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * WIDTH;
  if (channel >= channels) return;
  const std::int64_t rows = a.projected.rows, first = blockIdx.x * part;
  const std::int64_t end = min(first + part, rows), stop = end + kDeltaBefore;
  const std::int64_t column = column_of_channel(a.columns, channel);
  float w[kDeltaTaps][WIDTH], d_taps[kDeltaTaps][WIDTH] = {};
  float before[kDeltaBefore][WIDTH] = {};
  float pending[kDeltaBefore][WIDTH] = {};  // gradients of the last tokens, which later tokens add to
  load_taps<WIDTH>(a.taps, channel, vector_taps, w);
  DocumentCursor document(a.documents.cu_seqlens, a.documents.count, first);
  load_before<T>(a.projected, document, first, column, before);
  for (std::int64_t next = first; next < stop; next += kAtOnce) {
    Channels<T, WIDTH> raw_x[kAtOnce], raw_d[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t t = next + k;
      if (t >= stop || t >= rows) continue;
      raw_x[k].load(row_of<T>(a.projected, t) + column);
      raw_d[k].load(row_of<T>(a.d_qkv, t) + channel);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t t = next + k;
      if (t >= stop) break;
      float x[WIDTH] = {}, own[WIDTH] = {};
      if (t < rows && document.move_to(t)) {
        if (t == document.begin) {
#pragma unroll
          for (int j = 0; j < kDeltaBefore; ++j) {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) before[j][i] = 0.0f;
          }
        }
        float d[WIDTH];
        raw_x[k].get(x);
        raw_d[k].get(d);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          float value, slope;
          Silu::both(sum_of_taps<WIDTH>(w, before, x, i), value, slope);
          d[i] *= slope;
          own[i] = d[i] * w[kDeltaBefore][i];
#pragma unroll
          for (int j = 0; j < kDeltaBefore; ++j) {
            // Token t - kDeltaBefore + j. Tokens of earlier documents get nothing.
            if (t - kDeltaBefore + j >= document.begin) {
              pending[j][i] = __fmaf_rn(d[i], w[j][i], pending[j][i]);
            }
            if (t < end) d_taps[j][i] = __fmaf_rn(d[i], before[j][i], d_taps[j][i]);
          }
          if (t < end) d_taps[kDeltaBefore][i] = __fmaf_rn(d[i], x[i], d_taps[kDeltaBefore][i]);
        }
      }
      const std::int64_t done = t - kDeltaBefore;
      if (done >= first) {
        Channels<T, WIDTH> out;
        out.put(pending[0]);
        out.store(row_of<T>(a.d_projected, done) + column);
      }
      shift_in<WIDTH>(before, x);
      shift_in<WIDTH>(pending, own);
    }
  }
  if (partial == nullptr) return;
  float* const to = partial + (blockIdx.x * channels + channel) * kDeltaTaps;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
#pragma unroll
    for (int j = 0; j < kDeltaTaps; ++j) to[i * kDeltaTaps + j] = d_taps[j][i];
  }
}

constexpr int kGateRows = kThreads / kWarp;

/// Block (part of the tokens): gradients of a and b, and partial sums [parts, value_heads] of the gradients
/// of a_log and dt_bias. A warp has 32 heads of a token.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gates_backward_kernel(DeltaInputsBackwardArgs a, std::int64_t part, float* a_log_sums, float* bias_sums) {
  __shared__ float sums[2][kGateRows][kWarp];
  const std::int64_t heads = a.columns.heads.value_heads, rows = a.projected.rows;
  const std::int64_t first = blockIdx.x * part, end = min(first + part, rows);
  const std::int64_t used = a.documents.count == 0 ? 0 : a.documents.cu_seqlens[a.documents.count];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, own = static_cast<int>(threadIdx.x) / kWarp;
  for (std::int64_t from = 0; from < heads; from += kWarp) {
    const std::int64_t h = from + lane;
    float of_a_log = 0.0f, of_bias = 0.0f;
    for (std::int64_t t = first + own; t < end && h < heads; t += kGateRows) {
      const T* const row = row_of<T>(a.projected, t);
      float d_a = 0.0f, d_b = 0.0f;
      if (t < used) {
        const float x = to_float(row[a.columns.a(h)]), d_decay = a.d_log_decay[t * heads + h];
        d_a =
            static_cast<float>(static_cast<double>(d_decay) * delta_decay_slope(a.a_log[h], x, a.dt_bias[h]));
        d_b = static_cast<float>(static_cast<double>(a.d_beta[t * heads + h]) *
                                 delta_beta_slope(to_float(row[a.columns.b(h)])));
        of_a_log +=
            static_cast<float>(static_cast<double>(d_decay) * delta_decay(a.a_log[h], x, a.dt_bias[h]));
        of_bias += d_a;
      }
      T* const to = row_of<T>(a.d_projected, t);
      to[a.columns.a(h)] = narrow<T>(d_a);
      to[a.columns.b(h)] = narrow<T>(d_b);
    }
    sums[0][own][lane] = of_a_log;
    sums[1][own][lane] = of_bias;
    __syncthreads();
    if (own < 2 && h < heads) {
      float total = 0.0f;
      for (int r = 0; r < kGateRows; ++r) total += sums[own][r][lane];
      (own == 0 ? a_log_sums : bias_sums)[blockIdx.x * heads + h] = total;
    }
    __syncthreads();
  }
}

}  // namespace

void delta_inputs_backward(Stream& stream, const DeltaInputsBackwardArgs& a) {
  const std::int64_t channels = a.columns.heads.qkv_width(), heads = a.columns.heads.value_heads;
  const std::int64_t rows = a.projected.rows;
  if (rows == 0) return;
  const std::int64_t part = delta_inputs_block(rows), parts = ceil_div(rows, part);
  auto* const tap_sums = static_cast<float*>(a.workspace.data);
  float* const a_log_sums = tap_sums + parts * channels * kDeltaTaps;
  float* const bias_sums = a_log_sums + parts * heads;
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
      const dim3 grid(static_cast<unsigned>(parts),
                      static_cast<unsigned>(ceil_div(ceil_div(channels, kWidth), kThreads)));
      delta_inputs_backward_kernel<T, kWidth>
          <<<grid, kThreads, 0, on>>>(a, channels, part, a.d_taps ? tap_sums : nullptr, packs(a.taps));
    };
    if (wide) {
      launch(std::integral_constant<int, kWide>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
    octet::cuda::check_launch("delta_inputs_backward");
    gates_backward_kernel<T>
        <<<static_cast<unsigned>(parts), kThreads, 0, on>>>(a, part, a_log_sums, bias_sums);
    octet::cuda::check_launch("delta_inputs_backward");
  });
  const auto add = [&](const float* from, std::int64_t count, float* to) {
    if (to == nullptr) return;
    add_norm_sums_kernel<<<static_cast<unsigned>(ceil_div(count, kWarp)), kSumWarps * kWarp, 0, on>>>(
        from, parts, count, to);
    octet::cuda::check_launch("delta_inputs_backward");
  };
  add(tap_sums, channels * kDeltaTaps, a.d_taps);
  add(a_log_sums, heads, a.d_a_log);
  add(bias_sums, heads, a.d_dt_bias);
}

}  // namespace octet::ops::cuda
