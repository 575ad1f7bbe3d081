#include <cmath>

#include "cpu/norm_rows.h"
#include "cpu/row_quantizer.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

template <typename T>
OCTET_SIMD void norm_row(const RmsNormArgs& a, RowQuantizer& quantizer, std::int64_t row) {
  const std::int64_t hidden = a.residual.cols;
  const T* residual = row_of<T>(a.residual, row);
  const T* delta = a.delta.data ? row_of<T>(a.delta, row) : nullptr;
  T* kept = a.sum.data ? row_of<T>(a.sum, row) : nullptr;
  float x[kChunk];
  using W = WideNorm<T>;
  WideLanes<W> squares;
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    load_sum(residual + c, delta ? delta + c : nullptr, x, n);
    if (kept) store(x, kept + c, n);
    squares.add(
        n, [&](std::int64_t i)
               __attribute__((always_inline)) { return static_cast<W>(x[i]) * static_cast<W>(x[i]); });
  }
  const W rstd = W{1} / std::sqrt(squares.total() / static_cast<W>(hidden) + static_cast<W>(a.eps));
  if (a.rstd) a.rstd[row] = static_cast<float>(rstd);
  // `sum` may alias `residual`: the residual is then overwritten, and the sum is read instead.
  const T* again = kept ? kept : residual;
  const T* again_delta = kept ? nullptr : delta;
  const W one = a.one_plus_weight ? W{1} : W{0};
  float y[kChunk];
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    if (hidden > kChunk) load_sum(again + c, again_delta ? again_delta + c : nullptr, x, n);
    const float* w = a.weight + c;
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = simd::rounded_to<T>(static_cast<float>(x[i] * rstd * (one + w[i])));
    }
    if (a.out.data) store(y, row_of<T>(a.out, row) + c, n);
    quantizer.take(y, row, c, n);
  }
  quantizer.finish_row();
}

template <typename T>
OCTET_SIMD void norm_backward_row(const RmsNormBackwardArgs& a, RowQuantizer& quantizer, std::int64_t row,
                                  float* __restrict d_weight) {
  const std::int64_t hidden = a.dy.cols;
  const T* dy = row_of<T>(a.dy, row);
  const T* x = row_of<T>(a.x, row);
  T* d_residual = row_of<T>(a.d_residual, row);
  const float rstd = a.rstd[row];
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  float dyf[kChunk];
  float xhat[kChunk];
  float d[kChunk];
  Lanes dot;
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    const float* w = a.weight + c;
    load(dy + c, dyf, n);
    load(x + c, xhat, n);
    for (std::int64_t i = 0; i < n; ++i) xhat[i] *= rstd;
    add_terms(
        dot,
        n, [&](std::int64_t i) __attribute__((always_inline)) { return dyf[i] * (one + w[i]) * xhat[i]; });
    if (d_weight) {
      for (std::int64_t i = 0; i < n; ++i) d_weight[c + i] += dyf[i] * xhat[i];
    }
  }
  const float mean = total(dot) / static_cast<float>(hidden);
  for (std::int64_t c = 0; c < hidden; c += kChunk) {
    const std::int64_t n = chunk_length(c, hidden);
    const float* w = a.weight + c;
    if (hidden > kChunk) {
      load(dy + c, dyf, n);
      load(x + c, xhat, n);
      for (std::int64_t i = 0; i < n; ++i) xhat[i] *= rstd;
    }
    for (std::int64_t i = 0; i < n; ++i) d[i] = rstd * (dyf[i] * (one + w[i]) - xhat[i] * mean);
    if (a.accumulate) {
      for (std::int64_t i = 0; i < n; ++i) d[i] += simd::load(d_residual[c + i]);
    }
    round_to<T>(d, n);
    store(d, d_residual + c, n);
    quantizer.take(d, row, c, n);
  }
  quantizer.finish_row();
}

/// Adds partial sums for n columns, at most kChunk.
OCTET_SIMD void add_columns(const float* partial, std::int64_t blocks, std::int64_t stride,
                            float* __restrict to, std::int64_t n) {
  float sum[kChunk];
  for (std::int64_t i = 0; i < n; ++i) sum[i] = partial[i];
  for (std::int64_t b = 1; b < blocks; ++b) {
    const float* p = partial + b * stride;
    for (std::int64_t i = 0; i < n; ++i) sum[i] += p[i];
  }
  for (std::int64_t i = 0; i < n; ++i) to[i] += sum[i];
}

}  // namespace

void add_partial_sums(const float* partial, std::int64_t blocks, std::int64_t hidden, float* to) {
  if (!to || blocks == 0) return;
  const std::int64_t chunks = (hidden + kChunk - 1) / kChunk;
  simd::parallel_rows(chunks, blocks * kChunk, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = first * kChunk; c < std::min(hidden, last * kChunk); c += kChunk)
      add_columns(partial + c, blocks, hidden, to + c, chunk_length(c, hidden));
  });
}

void rms_norm(const RmsNormArgs& a) {
  with_type(a.residual.dtype, [&](auto type) {
    simd::parallel_rows(a.residual.rows, 2 * a.residual.cols, [&](std::int64_t begin, std::int64_t end) {
      RowQuantizer quantizer(a.quantize, a.residual.rows, a.residual.cols);
      for (std::int64_t r = begin; r < end; ++r) norm_row<decltype(type)>(a, quantizer, r);
    });
  });
}

void rms_norm_backward(const RmsNormBackwardArgs& a) {
  const std::int64_t rows = a.dy.rows, hidden = a.dy.cols;
  // d_weight is summed over fixed blocks of rows, then over the blocks in order.
  const std::int64_t block = rms_norm_backward_block(rows);
  const std::int64_t blocks = (rows + block - 1) / block;
  auto* partial = a.d_weight ? static_cast<float*>(a.workspace.data) : nullptr;
  with_type(a.dy.dtype, [&](auto type) {
    simd::parallel_rows(blocks, 3 * block * hidden, [&](std::int64_t first, std::int64_t last) {
      RowQuantizer quantizer(a.quantize, rows, hidden);
      for (std::int64_t b = first; b < last; ++b) {
        float* d_weight = partial ? partial + b * hidden : nullptr;
        if (d_weight) std::fill(d_weight, d_weight + hidden, 0.0f);
        const std::int64_t end = std::min(rows, (b + 1) * block);
        for (std::int64_t r = b * block; r < end; ++r) {
          norm_backward_row<decltype(type)>(a, quantizer, r, d_weight);
        }
      }
    });
  });
  add_partial_sums(partial, blocks, hidden, a.d_weight);
}

}  // namespace octet::ops::cpu
