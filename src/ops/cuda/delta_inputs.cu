#include "octet/ops/delta_inputs.h"

#include <algorithm>

#include "cuda/activations.cuh"
#include "cuda/delta_columns.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"
#include "delta_gate_rule.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

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

/// Threads of a block of delta_inputs_kernel(), and blocks of a multiprocessor.
constexpr int kRunThreads = 128, kRunBlocks = 5;
/// Tokens of a thread with loads in flight: at 16 bytes, 40 KiB of a multiprocessor.
constexpr int kAtOnce = 4;
/// Tokens of a block. Shorter runs read more earlier tokens, longer runs fill the last wave less.
constexpr std::int64_t kLeastRun = 16, kMostRun = 96;

/// Computes WIDTH channels of `count` tokens after `first`. When a token is used, the token kAtOnce later is
/// loaded in its place.
template <typename T, int WIDTH>
__device__ inline void convolve_run(const DeltaInputsArgs& a, std::int64_t first, int count,
                                    std::int64_t channel, bool vector_taps) {
  const std::int64_t column = column_of_channel(a.columns, channel), ld = a.projected.ld;
  const T* from = row_of<T>(a.projected, first) + column;
  T* to = row_of<T>(a.qkv, first) + channel;
  Channels<T, WIDTH> raw[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k, from += ld) {
    if (k < count) raw[k].load(from);
  }
  float w[kDeltaTaps][WIDTH], before[kDeltaBefore][WIDTH] = {};
  load_taps<WIDTH>(a.taps, channel, vector_taps, w);
  DocumentCursor document(a.documents.cu_seqlens, a.documents.count, first);
  load_before<T>(a.projected, document, first, column, before);
  // `inside`: the document of the token is known, and the token is not its first.
  const auto token = [&](auto inside, int i, int k) {
    float x[WIDTH], y[WIDTH] = {};
    raw[k].get(x);
    if (i + kAtOnce < count) raw[k].load(from);
    from += ld;
    if (inside.value || document.move_to(first + i)) {
      if (!inside.value && first + i == document.begin) {
#pragma unroll
        for (int j = 0; j < kDeltaBefore; ++j) {
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) before[j][c] = 0.0f;
        }
      }
      convolve<WIDTH>(w, before, x, y);
      shift_in<WIDTH>(before, x);
    }
    Channels<T, WIDTH> out;
    out.put(y);
    out.store(to);
    to += a.qkv.ld;
  };
  for (int i = 0; i < count; i += kAtOnce) {
    if (i + kAtOnce <= count && first + i > document.begin && first + i + kAtOnce <= document.end) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) token(std::true_type{}, i + k, k);
    } else {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k < count) token(std::false_type{}, i + k, k);
      }
    }
  }
}

/// Computes the gates of `count` tokens after `first`. A warp has 32 heads of a token.
template <typename T>
__device__ inline void gates_of_run(const DeltaInputsArgs& a, std::int64_t first, int count) {
  const std::int64_t heads = a.columns.heads.value_heads;
  const std::int64_t used = a.documents.count == 0 ? 0 : a.documents.cu_seqlens[a.documents.count];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  for (std::int64_t h = lane; h < heads; h += kWarp) {
    const double rate = -exp(static_cast<double>(a.a_log[h]));
    const float bias = a.dt_bias[h];
    const std::int64_t column_a = a.columns.a(h), column_b = a.columns.b(h);
    for (int i = warp; i < count; i += kRunThreads / kWarp) {
      const std::int64_t t = first + i;
      double decay = 0.0, beta = 0.0;
      if (t < used) {
        const T* const row = row_of<T>(a.projected, t);
        beta = delta_sigmoid(static_cast<double>(to_float(row[column_b])));
        decay = rate * delta_softplus(to_float(row[column_a]), bias);
      }
      a.log_decay[t * heads + h] = static_cast<float>(decay);
      a.beta[t * heads + h] = static_cast<float>(beta);
    }
  }
}

/// Block (run of tokens, part). The parts of a run are pieces of the channels, and the gates. They follow
/// each other, so that blocks that run together read whole rows. A thread has WIDTH channels.
template <typename T, int WIDTH>
__global__ void __launch_bounds__(kRunThreads, kRunBlocks)
    delta_inputs_kernel(DeltaInputsArgs a, unsigned pieces, int run, bool vector_taps) {
  const unsigned piece = blockIdx.x % (pieces + 1);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x / (pieces + 1)) * run;
  const std::int64_t left = a.projected.rows - first;
  const int count = left < run ? static_cast<int>(left) : run;
  if (piece == pieces) return gates_of_run<T>(a, first, count);
  const std::int64_t channel = (std::int64_t{piece} * kRunThreads + threadIdx.x) * WIDTH;
  if (channel >= a.columns.heads.qkv_width()) return;
  convolve_run<T, WIDTH>(a, first, count, channel, vector_taps);
}

/// Returns tokens per block, so that the blocks of `rows` tokens fill whole waves on the GPU. No bit of a
/// result depends on it.
int run_of(const Stream& stream, std::int64_t rows, std::int64_t parts) {
  const std::int64_t together = octet::cuda::properties(stream.device()).multiprocessors * kRunBlocks;
  const std::int64_t runs = std::max<std::int64_t>(1, together / parts);
  const std::int64_t waves = ceil_div(rows, runs * kMostRun);
  const std::int64_t run = ceil_div(ceil_div(rows, runs * waves), kAtOnce) * kAtOnce;
  return static_cast<int>(std::max(kLeastRun, run));
}

struct Gates {
  ConstMatrix projected;
  DeltaColumns columns;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  float* log_decay = nullptr;
  float* beta = nullptr;
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
  const T* const row = row_of<T>(a.projected, t);
  const double beta = delta_sigmoid(static_cast<double>(to_float(row[a.columns.b(h)])));
  a.log_decay[i] = static_cast<float>(delta_decay(a.a_log[h], to_float(row[a.columns.a(h)]), a.dt_bias[h]));
  a.beta[i] = static_cast<float>(beta);
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
      const std::int64_t pieces = ceil_div(ceil_div(channels, kWidth), kRunThreads);
      const int run = run_of(stream, rows, pieces + 1);
      const auto blocks = static_cast<unsigned>(ceil_div(rows, run) * (pieces + 1));
      delta_inputs_kernel<T, kWidth><<<blocks, kRunThreads, 0, octet::cuda::native(stream)>>>(
          a, static_cast<unsigned>(pieces), run, packs(a.taps));
      octet::cuda::check_launch("delta_inputs");
    };
    if (packs(a.projected) && packs(a.qkv)) {
      launch(std::integral_constant<int, 16 / static_cast<int>(sizeof(T))>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
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
    const Gates gates{.projected = a.projected,
                      .columns = a.columns,
                      .a_log = a.a_log,
                      .dt_bias = a.dt_bias,
                      .log_decay = a.log_decay,
                      .beta = a.beta};
    const auto blocks = ceil_div(rows * a.columns.heads.value_heads, kThreads);
    launch_early_if(few_rows(rows), gates_kernel<T>, dim3(static_cast<unsigned>(blocks)), kThreads, 0,
                    octet::cuda::native(stream), "cached_delta_inputs", gates);
  });
}

}  // namespace octet::ops::cuda
