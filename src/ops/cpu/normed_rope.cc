#include <cmath>
#include <cstring>

#include "cpu/row_quantizer.h"
#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

template <typename T>
OCTET_SIMD void forward_row(const NormedRopeArgs& a, std::int64_t row) {
  const std::int64_t dim = a.heads.head_dim, half = (a.rotated == 0 ? dim : a.rotated) / 2;
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
  const float* cosine = a.cosine + a.positions[row] * half;
  const float* sine = a.sine + a.positions[row] * half;
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  T* x = row_of<T>(a.qkv, row);
  if (a.raw.data) std::memcpy(row_of<T>(a.raw, row), x, static_cast<std::size_t>(heads * dim) * sizeof(T));
  float y[kMaxNormedHeadDim];
  for (std::int64_t h = 0; h < heads; ++h) {
    T* head = x + h * dim;
    const float* w = h < a.heads.q_heads ? a.q_weight : a.k_weight;
    load(head, y, dim);
    Lanes squares;
    add_terms(
        squares, dim, [&](std::int64_t i) __attribute__((always_inline)) { return y[i] * y[i]; });
    const float rstd = 1.0f / std::sqrt(total(squares) / static_cast<float>(dim) + a.eps);
    if (a.rstd) a.rstd[row * heads + h] = rstd;
    for (std::int64_t i = 0; i < dim; ++i) y[i] = y[i] * rstd * (one + w[i]);
    for (std::int64_t i = 0; i < half; ++i) {
      simd::store(head[i], y[i] * cosine[i] - y[half + i] * sine[i]);
      simd::store(head[half + i], y[half + i] * cosine[i] + y[i] * sine[i]);
    }
    for (std::int64_t i = 2 * half; i < dim; ++i) simd::store(head[i], y[i]);
  }
}

// `d_weights`: partial sums of the query weight's gradient, then the key weight's. null: not computed.
template <typename T>
OCTET_SIMD void backward_row(const NormedRopeBackwardArgs& a, RowQuantizer* quantizer, std::int64_t row,
                             float* __restrict d_weights) {
  const std::int64_t dim = a.heads.head_dim, half = (a.rotated == 0 ? dim : a.rotated) / 2;
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
  const float* cosine = a.cosine + a.positions[row] * half;
  const float* sine = a.sine + a.positions[row] * half;
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  const T* raw = row_of<T>(a.raw, row);
  T* d = row_of<T>(a.d_qkv, row);
  float dy[kMaxNormedHeadDim];
  float xhat[kMaxNormedHeadDim];
  for (std::int64_t h = 0; h < heads; ++h) {
    T* head = d + h * dim;
    const bool query = h < a.heads.q_heads;
    const float* w = query ? a.q_weight : a.k_weight;
    const float rstd = a.rstd[row * heads + h];
    for (std::int64_t i = 0; i < half; ++i) {
      const float first = simd::load(head[i]), second = simd::load(head[half + i]);
      dy[i] = first * cosine[i] + second * sine[i];
      dy[half + i] = second * cosine[i] - first * sine[i];
    }
    for (std::int64_t i = 2 * half; i < dim; ++i) dy[i] = simd::load(head[i]);
    load(raw + h * dim, xhat, dim);
    for (std::int64_t i = 0; i < dim; ++i) xhat[i] *= rstd;
    if (d_weights) {
      float* __restrict sum = d_weights + (query ? 0 : dim);
      for (std::int64_t i = 0; i < dim; ++i) sum[i] += dy[i] * xhat[i];
    }
    for (std::int64_t i = 0; i < dim; ++i) dy[i] *= one + w[i];
    Lanes dot;
    add_terms(
        dot, dim, [&](std::int64_t i) __attribute__((always_inline)) { return dy[i] * xhat[i]; });
    const float mean = total(dot) / static_cast<float>(dim);
    for (std::int64_t i = 0; i < dim; ++i) simd::store(head[i], rstd * (dy[i] - xhat[i] * mean));
  }
  if (!quantizer) return;
  float chunk[kChunk];
  for (std::int64_t c = 0; c < a.d_qkv.cols; c += kChunk) {
    const std::int64_t n = chunk_length(c, a.d_qkv.cols);
    load(d + c, chunk, n);
    quantizer->take(chunk, row, c, n);
  }
  quantizer->finish_row();
}

}  // namespace

void normed_rope(const NormedRopeArgs& a) {
  with_type(a.qkv.dtype, [&](auto type) {
    simd::parallel_rows(a.qkv.rows, 4 * a.qkv.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) forward_row<decltype(type)>(a, r);
    });
  });
}

void normed_rope_backward(const NormedRopeBackwardArgs& a) {
  const std::int64_t rows = a.d_qkv.rows, dim = a.heads.head_dim;
  const std::int64_t block = rms_norm_backward_block(rows);
  const std::int64_t blocks = (rows + block - 1) / block;
  auto* partial = a.d_q_weight || a.d_k_weight ? static_cast<float*>(a.workspace.data) : nullptr;
  const bool copies = a.quantize.row || a.quantize.transposed || a.quantize.amax;
  with_type(a.d_qkv.dtype, [&](auto type) {
    simd::parallel_rows(blocks, 6 * block * a.d_qkv.cols, [&](std::int64_t first, std::int64_t last) {
      RowQuantizer quantizer(a.quantize, rows, a.d_qkv.cols);
      for (std::int64_t b = first; b < last; ++b) {
        float* sums = partial ? partial + b * 2 * dim : nullptr;
        if (sums) std::fill(sums, sums + 2 * dim, 0.0f);
        const std::int64_t end = std::min(rows, (b + 1) * block);
        for (std::int64_t r = b * block; r < end; ++r) {
          backward_row<decltype(type)>(a, copies ? &quantizer : nullptr, r, sums);
        }
      }
    });
  });
  const auto add_up = [&](std::int64_t offset, float* to) {
    for (std::int64_t i = 0; to && i < dim; ++i) {
      float sum = 0.0f;
      for (std::int64_t b = 0; b < blocks; ++b) sum += partial[b * 2 * dim + offset + i];
      to[i] += sum;
    }
  };
  add_up(0, a.d_q_weight);
  add_up(dim, a.d_k_weight);
}

}  // namespace octet::ops::cpu
