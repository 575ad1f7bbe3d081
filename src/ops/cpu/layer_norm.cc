#include "octet/ops/layer_norm.h"

#include <cmath>

#include "cpu/norm_rows.h"
#include "cpu/row_quantizer.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

template <typename T>
OCTET_SIMD void layer_norm_row(const LayerNormArgs& a, RowQuantizer& quantizer, std::int64_t row) {
  using W = WideNorm<T>;
  const std::int64_t hidden = a.residual.cols;
  const T* residual = row_of<T>(a.residual, row);
  const T* delta = a.delta.data ? row_of<T>(a.delta, row) : nullptr;
  T* kept = a.sum.data ? row_of<T>(a.sum, row) : nullptr;
  float x[kChunk];
  WideLanes<W> sum;
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    load_sum(residual + c, delta ? delta + c : nullptr, x, n);
    if (kept) store(x, kept + c, n);
    sum.add(
        n, [&](std::int64_t i) __attribute__((always_inline)) { return static_cast<W>(x[i]); });
  }
  // `sum` may alias `residual`: the residual is then overwritten, and the sum is read instead.
  const T* again = kept ? kept : residual;
  const T* again_delta = kept ? nullptr : delta;
  const W mean = sum.total() / static_cast<W>(hidden);
  WideLanes<W> squares;
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    if (hidden > kChunk) load_sum(again + c, again_delta ? again_delta + c : nullptr, x, n);
    squares.add(
        n, [&](std::int64_t i) __attribute__((always_inline)) {
          const W d = static_cast<W>(x[i]) - mean;
          return d * d;
        });
  }
  const W rstd = W{1} / std::sqrt(squares.total() / static_cast<W>(hidden) + static_cast<W>(a.eps));
  if (a.mean) a.mean[row] = static_cast<float>(mean);
  if (a.rstd) a.rstd[row] = static_cast<float>(rstd);
  float y[kChunk];
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    if (hidden > kChunk) load_sum(again + c, again_delta ? again_delta + c : nullptr, x, n);
    const float* w = a.weight + c;
    for (std::int64_t i = 0; i < n; ++i) {
      const W normed = (static_cast<W>(x[i]) - mean) * rstd * static_cast<W>(w[i]);
      const W bias = a.bias ? static_cast<W>(a.bias[c + i]) : W{0};
      y[i] = simd::rounded_to<T>(static_cast<float>(normed + bias));
    }
    if (a.out.data) store(y, row_of<T>(a.out, row) + c, n);
    quantizer.take(y, row, c, n);
  }
  quantizer.finish_row();
}

/// `d_weight`, `d_bias`: partial sums; null: not computed.
template <typename T>
OCTET_SIMD void layer_norm_backward_row(const LayerNormBackwardArgs& a, RowQuantizer& quantizer,
                                        std::int64_t row, float* __restrict d_weight,
                                        float* __restrict d_bias) {
  const std::int64_t hidden = a.dy.cols;
  const T* dy = row_of<T>(a.dy, row);
  const T* x = row_of<T>(a.x, row);
  T* d_residual = row_of<T>(a.d_residual, row);
  const float rstd = a.rstd[row], mean = a.mean[row];
  float dyf[kChunk];
  float xhat[kChunk];
  float d[kChunk];
  Lanes sum, dot;
  const auto load_both = [&](std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
    load(dy + c, dyf, n);
    load(x + c, xhat, n);
    for (std::int64_t i = 0; i < n; ++i) xhat[i] = (xhat[i] - mean) * rstd;
  };
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    const float* w = a.weight + c;
    load_both(c, n);
    add_terms(
        sum, n, [&](std::int64_t i) __attribute__((always_inline)) { return dyf[i] * w[i]; });
    add_terms(
        dot, n, [&](std::int64_t i) __attribute__((always_inline)) { return dyf[i] * w[i] * xhat[i]; });
    if (d_weight) {
      for (std::int64_t i = 0; i < n; ++i) d_weight[c + i] += dyf[i] * xhat[i];
    }
    if (d_bias) {
      for (std::int64_t i = 0; i < n; ++i) d_bias[c + i] += dyf[i];
    }
  }
  const float mean_d = total(sum) / static_cast<float>(hidden);
  const float mean_dot = total(dot) / static_cast<float>(hidden);
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    const float* w = a.weight + c;
    if (hidden > kChunk) load_both(c, n);
    for (std::int64_t i = 0; i < n; ++i) d[i] = rstd * (dyf[i] * w[i] - mean_d - xhat[i] * mean_dot);
    if (a.accumulate) {
      for (std::int64_t i = 0; i < n; ++i) d[i] += simd::load(d_residual[c + i]);
    }
    round_to<T>(d, n);
    store(d, d_residual + c, n);
    quantizer.take(d, row, c, n);
  }
  quantizer.finish_row();
}

}  // namespace

void layer_norm(const LayerNormArgs& a) {
  with_type(a.residual.dtype, [&](auto type) {
    simd::parallel_rows(a.residual.rows, 3 * a.residual.cols, [&](std::int64_t begin, std::int64_t end) {
      RowQuantizer quantizer(a.quantize, a.residual.rows, a.residual.cols);
      for (std::int64_t r = begin; r < end; ++r) layer_norm_row<decltype(type)>(a, quantizer, r);
    });
  });
}

void layer_norm_backward(const LayerNormBackwardArgs& a) {
  const std::int64_t rows = a.dy.rows, hidden = a.dy.cols;
  const std::int64_t block = rms_norm_backward_block(rows);
  const std::int64_t blocks = (rows + block - 1) / block;
  const bool sums = a.d_weight || a.d_bias;
  auto* const weights = sums ? static_cast<float*>(a.workspace.data) : nullptr;
  auto* const biases = sums ? weights + blocks * hidden : nullptr;
  with_type(a.dy.dtype, [&](auto type) {
    simd::parallel_rows(blocks, 4 * block * hidden, [&](std::int64_t first, std::int64_t last) {
      RowQuantizer quantizer(a.quantize, rows, hidden);
      for (std::int64_t b = first; b < last; ++b) {
        float* const d_weight = a.d_weight ? weights + b * hidden : nullptr;
        float* const d_bias = a.d_bias ? biases + b * hidden : nullptr;
        if (d_weight) std::fill(d_weight, d_weight + hidden, 0.0f);
        if (d_bias) std::fill(d_bias, d_bias + hidden, 0.0f);
        const std::int64_t end = std::min(rows, (b + 1) * block);
        for (std::int64_t r = b * block; r < end; ++r) {
          layer_norm_backward_row<decltype(type)>(a, quantizer, r, d_weight, d_bias);
        }
      }
    });
  });
  add_partial_sums(weights, blocks, hidden, a.d_weight);
  add_partial_sums(biases, blocks, hidden, a.d_bias);
}

}  // namespace octet::ops::cpu
