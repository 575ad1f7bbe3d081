#include "octet/ops/delta_inputs.h"

#include "cuda/activations.cuh"
#include "cuda/delta_columns.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"
#include "delta_gate_rule.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
/// Tokens of a thread, and tokens with loads in flight together.
constexpr int kRun = 32, kAtOnce = 4;
static_assert(kRun % kAtOnce == 0);

/// Returns silu of the convolution of the inputs before a token with its own input.
template <int WIDTH>
__device__ inline void convolve(const float (&w)[kDeltaTaps][WIDTH],
                                const float (&before)[kDeltaBefore][WIDTH], const float (&x)[WIDTH],
                                float (&y)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    const float sum = sum_of_taps<WIDTH>(w, before, x, i);
    float slope;
    Silu::both(sum, y[i], slope);
  }
}
/// Block (run of tokens, channels). A thread has WIDTH channels.
template <typename T, int WIDTH>
__global__ void __launch_bounds__(kThreads)
    delta_inputs_kernel(DeltaInputsArgs a, std::int64_t channels, bool vector_taps) {
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * WIDTH;
  if (channel >= channels) return;
  const std::int64_t rows = a.projected.rows, first = static_cast<std::int64_t>(blockIdx.x) * kRun;
  const std::int64_t column = column_of_channel(a.columns, channel);
  float w[kDeltaTaps][WIDTH], before[kDeltaBefore][WIDTH] = {};
  load_taps<WIDTH>(a.taps, channel, vector_taps, w);
  DocumentCursor document(a.documents.cu_seqlens, a.documents.count, first);
  load_before<T>(a.projected, document, first, column, before);
  for (int i = 0; i < kRun; i += kAtOnce) {
    Channels<T, WIDTH> raw[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t t = first + i + k;
      if (t < rows) raw[k].load(row_of<T>(a.projected, t) + column);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t t = first + i + k;
      if (t >= rows) return;
      float x[WIDTH], y[WIDTH] = {};
      if (document.move_to(t)) {
        if (t == document.begin) {
#pragma unroll
          for (int j = 0; j < kDeltaBefore; ++j) {
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) before[j][c] = 0.0f;
          }
        }
        raw[k].get(x);
        convolve<WIDTH>(w, before, x, y);
        shift_in<WIDTH>(before, x);
      }
      raw[k].put(y);
      raw[k].store(row_of<T>(a.qkv, t) + channel);
    }
  }
}

struct Gates {
  ConstMatrix projected;
  DeltaColumns columns;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  float* log_decay = nullptr;
  float* beta = nullptr;
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t documents = 0;
  bool all = false;  ///< each token has a document
};

/// Thread: a value head of a token.
template <typename T>
__global__ void __launch_bounds__(kThreads) gates_kernel(Gates a) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t heads = a.columns.heads.value_heads;
  if (i >= a.projected.rows * heads) return;
  const std::int64_t t = i / heads, h = i % heads;
  double decay = 0.0, beta = 0.0;
  if (a.all || (a.documents > 0 && t < a.cu_seqlens[a.documents])) {
    const T* const row = row_of<T>(a.projected, t);
    beta = delta_sigmoid(static_cast<double>(to_float(row[a.columns.b(h)])));
    decay = delta_decay(a.a_log[h], to_float(row[a.columns.a(h)]), a.dt_bias[h]);
  }
  a.log_decay[i] = static_cast<float>(decay);
  a.beta[i] = static_cast<float>(beta);
}

template <typename T>
void launch_gates(Stream& stream, const Gates& gates, const char* op) {
  const auto blocks = ceil_div(gates.projected.rows * gates.columns.heads.value_heads, kThreads);
  launch_early_if(few_rows(gates.projected.rows), gates_kernel<T>, dim3(static_cast<unsigned>(blocks)),
                  kThreads, 0, octet::cuda::native(stream), op, gates);
}

/// Block (token, channels). The thread of the first token of a sequence in this call also computes the next
/// two tokens, because they need earlier inputs. Then it keeps the last inputs of the sequence. All other
/// tokens have their inputs in `projected`. Copies of token 0 are not computed.
template <typename T, int WIDTH>
__global__ void __launch_bounds__(kThreads)
    cached_delta_inputs_kernel(CachedDeltaInputsArgs a, std::int64_t channels, bool vector_taps) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * WIDTH;
  if (channel >= channels) return;
  const std::int64_t rows = a.projected.rows, column = column_of_channel(a.columns, channel), t = blockIdx.x;
  const CachedTokens tokens{a.slots, a.positions, rows};
  const auto same = [&](std::int64_t token) { return tokens.same(token, t); };
  const bool starts = !same(t - 1);
  if (tokens.copy(t) || (!starts && !same(t - kDeltaBefore))) return;
  const auto input = [&](std::int64_t token, float(&x)[WIDTH]) {
    Channels<T, WIDTH> raw;
    raw.load(row_of<T>(a.projected, token) + column);
    raw.get(x);
  };
  const std::int64_t position = a.positions[t];
  const auto kept = [&](std::int64_t at) {
    return a.past + (a.slots[t] * kDeltaBefore + at % kDeltaBefore) * channels + channel;
  };
  float w[kDeltaTaps][WIDTH], before[kDeltaBefore][WIDTH] = {};
  load_taps<WIDTH>(a.taps, channel, vector_taps, w);
#pragma unroll
  for (int j = 0; j < kDeltaBefore; ++j) {
    const std::int64_t at = position - kDeltaBefore + j;
    if (!starts) {
      input(t - kDeltaBefore + j, before[j]);
    } else if (at >= 0) {
      const float* const from = kept(at);
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) before[j][c] = from[c];
    }
  }
  for (int k = 0; k < (starts ? kDeltaBefore : 1); ++k) {
    if (!same(t + k)) break;
    float x[WIDTH], y[WIDTH];
    input(t + k, x);
    convolve<WIDTH>(w, before, x, y);
    shift_in<WIDTH>(before, x);
    Channels<T, WIDTH> out;
    out.put(y);
    out.store(row_of<T>(a.qkv, t + k) + channel);
  }
  if (!starts) return;
  // Tokens of a sequence are neighbours, so its end is found by doubling and halving the distance.
  std::int64_t step = 1, last = t;
  while (same(last + step)) {
    last += step;
    step *= 2;
  }
  for (; step > 0; step /= 2) {
    if (same(last + step)) last += step;
  }
  for (std::int64_t token = max(t, last - (kDeltaBefore - 1)); token <= last; ++token) {
    float x[WIDTH];
    input(token, x);
    float* const to = kept(position + token - t);
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) to[c] = x[c];
  }
}

}  // namespace

void delta_inputs(Stream& stream, const DeltaInputsArgs& a) {
  const std::int64_t channels = a.columns.heads.qkv_width(), rows = a.projected.rows;
  if (rows == 0) return;
  with_type(a.projected.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto width) {
      constexpr int kWidth = width.value;
      const dim3 grid(static_cast<unsigned>(ceil_div(rows, kRun)),
                      static_cast<unsigned>(ceil_div(ceil_div(channels, kWidth), kThreads)));
      delta_inputs_kernel<T, kWidth>
          <<<grid, kThreads, 0, octet::cuda::native(stream)>>>(a, channels, packs(a.taps));
      octet::cuda::check_launch("delta_inputs");
    };
    if (packs(a.projected) && packs(a.qkv)) {
      launch(std::integral_constant<int, kPack>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
    launch_gates<T>(stream,
                    {.projected = a.projected,
                     .columns = a.columns,
                     .a_log = a.a_log,
                     .dt_bias = a.dt_bias,
                     .log_decay = a.log_decay,
                     .beta = a.beta,
                     .cu_seqlens = a.documents.cu_seqlens,
                     .documents = a.documents.count},
                    "delta_inputs");
  });
}

void cached_delta_inputs(Stream& stream, const CachedDeltaInputsArgs& a) {
  const std::int64_t channels = a.columns.heads.qkv_width(), rows = a.projected.rows;
  if (rows == 0) return;
  with_type(a.projected.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto width) {
      constexpr int kWidth = width.value;
      const dim3 grid(static_cast<unsigned>(rows),
                      static_cast<unsigned>(ceil_div(ceil_div(channels, kWidth), kThreads)));
      launch_early_if(few_rows(rows), cached_delta_inputs_kernel<T, kWidth>, grid, kThreads, 0,
                      octet::cuda::native(stream), "cached_delta_inputs", a, channels, packs(a.taps));
    };
    if (packs(a.projected) && packs(a.qkv)) {
      launch(std::integral_constant<int, kPack>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
    copy_first_row<T>(stream, a.qkv, {a.slots, a.positions, rows}, "cached_delta_inputs");
    launch_gates<T>(stream,
                    {.projected = a.projected,
                     .columns = a.columns,
                     .a_log = a.a_log,
                     .dt_bias = a.dt_bias,
                     .log_decay = a.log_decay,
                     .beta = a.beta,
                     .all = true},
                    "cached_delta_inputs");
  });
}

}  // namespace octet::ops::cuda
