#include <cmath>

#include "cpu/row_quantizer.h"
#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

// Rotates one head; `sign` is -1 when rotating back.
template <typename T>
OCTET_INLINE void rotate(T* __restrict a, T* __restrict b, const float* __restrict cosine,
                         const float* __restrict sine, float sign, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float s = sign * sine[i];
    const float x = simd::load(a[i]), y = simd::load(b[i]);
    simd::store(a[i], x * cosine[i] - y * s);
    simd::store(b[i], y * cosine[i] + x * s);
  }
}

// The pairs (2 i, 2 i + 1) of one head.
template <typename T>
OCTET_INLINE void rotate_pairs(T* __restrict x, const float* __restrict cosine, const float* __restrict sine,
                               float sign, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float s = sign * sine[i];
    const float a = simd::load(x[2 * i]), b = simd::load(x[2 * i + 1]);
    simd::store(x[2 * i], a * cosine[i] - b * s);
    simd::store(x[2 * i + 1], b * cosine[i] + a * s);
  }
}

template <typename T>
OCTET_SIMD void rotate_row(const RopeArgs& a, RowQuantizer* quantizer, std::int64_t row) {
  const std::int64_t half = (a.rotated == 0 ? a.heads.head_dim : a.rotated) / 2;
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
  const float* cosine = a.cosine + a.positions[row] * half;
  const float* sine = a.sine + a.positions[row] * half;
  T* x = row_of<T>(a.qkv, row);
  for (std::int64_t h = 0; h < heads; ++h) {
    T* head = x + h * a.heads.head_dim;
    const float sign = a.inverse ? -1.0f : 1.0f;
    if (a.interleaved) {
      rotate_pairs(head, cosine, sine, sign, half);
    } else {
      rotate(head, head + half, cosine, sine, sign, half);
    }
  }
  if (!quantizer) return;
  float chunk[kChunk];
  for (std::int64_t c = 0; c < a.qkv.cols; c += kChunk) {
    const std::int64_t n = chunk_length(c, a.qkv.cols);
    load(x + c, chunk, n);
    quantizer->take(chunk, row, c, n);
  }
  quantizer->finish_row();
}

}  // namespace

void rope_table(const RopeTableArgs& a) {
  simd::parallel_rows(a.positions, 64 * a.half_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      for (std::int64_t i = 0; i < a.half_dim; ++i) {
        const float angle = static_cast<float>(p) * a.inv_freq[i];
        // Computed in double, so that the table has the same bits on every machine.
        a.cosine[p * a.half_dim + i] = static_cast<float>(std::cos(static_cast<double>(angle))) * a.factor;
        a.sine[p * a.half_dim + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * a.factor;
      }
    }
  });
}

void rope(const RopeArgs& a) {
  const bool copies = a.quantize.row || a.quantize.transposed || a.quantize.amax;
  with_type(a.qkv.dtype, [&](auto type) {
    simd::parallel_rows(a.qkv.rows, 2 * a.qkv.cols, [&](std::int64_t begin, std::int64_t end) {
      RowQuantizer quantizer(a.quantize, a.qkv.rows, a.qkv.cols);
      for (std::int64_t r = begin; r < end; ++r) {
        rotate_row<decltype(type)>(a, copies ? &quantizer : nullptr, r);
      }
    });
  });
}

}  // namespace octet::ops::cpu
