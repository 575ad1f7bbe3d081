#include "octet/ops/gated_norm.h"

#include <algorithm>
#include <cmath>

#include "cpu/activations.h"
#include "cpu/row_quantizer.h"
#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

static_assert(kMostDeltaDim <= kChunk, "a head is one chunk");

OCTET_INLINE float inverse_root(const float* x, std::int64_t n, float eps) {
  Lanes squares;
  add_terms(
      squares, n, [&](std::int64_t i) __attribute__((always_inline)) { return x[i] * x[i]; });
  return 1.0f / std::sqrt(total(squares) / static_cast<float>(n) + eps);
}

template <typename T>
OCTET_SIMD void gated_norm_row(const GatedNormArgs& a, RowQuantizer& quantizer, std::int64_t row) {
  const std::int64_t n = a.columns.heads.value_dim;
  for (std::int64_t head = 0; head < a.columns.heads.value_heads; ++head) {
    const T* gate = row_of<T>(a.projected, row) + a.columns.gate(head);
    float x[kChunk];
    load(row_of<T>(a.o, row) + head * n, x, n);
    const float scale = inverse_root(x, n, a.eps);
    for (std::int64_t i = 0; i < n; ++i) {
      x[i] = simd::rounded_to<T>(x[i] * scale * a.weight[i] * Silu::value(simd::load(gate[i])));
    }
    if (a.out.data) store(x, row_of<T>(a.out, row) + head * n, n);
    quantizer.take(x, row, head * n, n);
  }
  quantizer.finish_row();
}

/// With x = o / sqrt(mean(o²) + eps), g = silu(z), p = d_out * weight: d_z = p x silu'(z), and d_o =
/// (p g - x mean(p g x)) / sqrt(mean(o²) + eps).
template <typename T>
OCTET_SIMD void gated_norm_backward_row(const GatedNormBackwardArgs& a, std::int64_t row,
                                        float* __restrict d_weight) {
  const std::int64_t n = a.columns.heads.value_dim;
  for (std::int64_t head = 0; head < a.columns.heads.value_heads; ++head) {
    const T* gate = row_of<T>(a.projected, row) + a.columns.gate(head);
    const T* d_out = row_of<T>(a.d_out, row) + head * n;
    float x[kChunk], d[kChunk], z[kChunk];
    load(row_of<T>(a.o, row) + head * n, x, n);
    const float scale = inverse_root(x, n, a.eps);
    for (std::int64_t i = 0; i < n; ++i) {
      float value, slope;
      Silu::both(simd::load(gate[i]), value, slope);
      x[i] *= scale;
      const float dy = simd::load(d_out[i]);
      z[i] = dy * a.weight[i] * x[i] * slope;
      d[i] = dy * value;
    }
    store(z, row_of<T>(a.d_projected, row) + a.columns.gate(head), n);
    if (d_weight) {
      for (std::int64_t i = 0; i < n; ++i) d_weight[i] += d[i] * x[i];
    }
    Lanes along;
    add_terms(
        along, n, [&](std::int64_t i) __attribute__((always_inline)) { return d[i] * a.weight[i] * x[i]; });
    const float mean = total(along) / static_cast<float>(n);
    T* d_o = row_of<T>(a.d_o, row) + head * n;
    for (std::int64_t i = 0; i < n; ++i) simd::store(d_o[i], scale * (d[i] * a.weight[i] - x[i] * mean));
  }
}

}  // namespace

void gated_norm(const GatedNormArgs& a) {
  with_type(a.o.dtype, [&](auto type) {
    simd::parallel_rows(a.o.rows, 6 * a.o.cols, [&](std::int64_t begin, std::int64_t end) {
      RowQuantizer quantizer(a.quantize, a.o.rows, a.o.cols);
      for (std::int64_t r = begin; r < end; ++r) gated_norm_row<decltype(type)>(a, quantizer, r);
    });
  });
}

void gated_norm_backward(const GatedNormBackwardArgs& a) {
  const std::int64_t rows = a.o.rows, dim = a.columns.heads.value_dim;
  // d_weight is summed over fixed blocks of rows, then over the blocks in order.
  const std::int64_t block = rms_norm_backward_block(rows), blocks = (rows + block - 1) / block;
  auto* partial = a.d_weight ? static_cast<float*>(a.workspace.data) : nullptr;
  with_type(a.o.dtype, [&](auto type) {
    simd::parallel_rows(blocks, 12 * block * a.o.cols, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t b = first; b < last; ++b) {
        float* d_weight = partial ? partial + b * dim : nullptr;
        if (d_weight) std::fill(d_weight, d_weight + dim, 0.0f);
        const std::int64_t end = std::min(rows, (b + 1) * block);
        for (std::int64_t r = b * block; r < end; ++r)
          gated_norm_backward_row<decltype(type)>(a, r, d_weight);
      }
    });
  });
  if (!partial) return;
  for (std::int64_t i = 0; i < dim; ++i) {
    float sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += partial[b * dim + i];
    a.d_weight[i] += sum;
  }
}

}  // namespace octet::ops::cpu
