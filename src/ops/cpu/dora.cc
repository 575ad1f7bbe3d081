#include "octet/ops/dora.h"

#include <cmath>

#include "cpu/rows.h"
#include "kernels.h"
#include "octet/base/dtype.h"

namespace octet::ops::cpu {
namespace {

constexpr std::int64_t kColumns = 64;

/// Loads elements [begin, begin + n) of a row of the weight.
OCTET_SIMD void load_weight(const Operand& w, std::int64_t row, std::int64_t begin, std::int64_t n,
                            float* to) {
  const std::int64_t at = row * w.cols + begin;
  if (w.dtype == DType::f32) return load(static_cast<const float*>(w.data) + at, to, n);
  if (w.dtype == DType::bf16) return load(static_cast<const Bf16*>(w.data) + at, to, n);
  const auto* codes = static_cast<const std::uint8_t*>(w.data) + at;
  for (std::int64_t i = 0; i < n; ++i) to[i] = from_fp8(codes[i], w.dtype) * *w.scale_inv;
}

template <typename T>
OCTET_SIMD float row_norm(const DoraScaleArgs& a, std::int64_t row) {
  float w[kChunk];
  Lanes sum;
  const T* b = row_of<T>(a.b, row);
  for (std::int64_t c = 0; c < a.weight.cols; c += kChunk) {
    const std::int64_t n = chunk_length(c, a.weight.cols);
    load_weight(a.weight, row, c, n, w);
    for (std::int64_t r = 0; r < a.a.rows; ++r) {
      const float factor = a.factor * simd::load(b[r]);
      const T* from = row_of<T>(a.a, r) + c;
      for (std::int64_t i = 0; i < n; ++i) w[i] += factor * simd::load(from[i]);
    }
    add_terms(sum, n, [&](std::int64_t i) { return w[i] * w[i]; });
  }
  return std::sqrt(total(sum));
}

template <typename T>
OCTET_SIMD void scale_row(const ScaleColumnsArgs& a, std::int64_t row) {
  float x[kChunk];
  for (std::int64_t c = 0; c < a.x.cols; c += kChunk) {
    const std::int64_t n = chunk_length(c, a.x.cols);
    load(row_of<T>(a.x, row) + c, x, n);
    for (std::int64_t i = 0; i < n; ++i) x[i] *= a.scale[c + i];
    if (a.bias != nullptr) {
      for (std::int64_t i = 0; i < n; ++i) x[i] += a.bias[c + i];
    }
    if (a.addend.data != nullptr) {
      const T* addend = row_of<T>(a.addend, row) + c;
      for (std::int64_t i = 0; i < n; ++i) x[i] += simd::load(addend[i]);
    }
    store(x, row_of<T>(a.out, row) + c, n);
  }
}

// Rows are summed in blocks of 64, so that rounding errors grow less with the length of a column.
template <typename T>
OCTET_SIMD void dot_block(const DotColumnsArgs& a, std::int64_t begin, std::int64_t n) {
  constexpr std::int64_t block = 64;
  float all[kColumns] = {};
  for (std::int64_t r0 = 0; r0 < a.x.rows; r0 += block) {
    float sum[kColumns] = {};
    const std::int64_t end = r0 + block < a.x.rows ? r0 + block : a.x.rows;
    for (std::int64_t r = r0; r < end; ++r) {
      const T* x = row_of<T>(a.x, r) + begin;
      const T* y = row_of<T>(a.y, r) + begin;
      for (std::int64_t i = 0; i < n; ++i) sum[i] += simd::load(x[i]) * simd::load(y[i]);
    }
    for (std::int64_t i = 0; i < n; ++i) all[i] += sum[i];
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const float divisor = a.divisor[begin + i];
    if (divisor != 0.0f) a.sums[begin + i] += all[i] / divisor;
  }
}

}  // namespace

void dora_scale(const DoraScaleArgs& a) {
  with_type(a.a.dtype, [&](auto type) {
    simd::parallel_rows(a.weight.rows, 2 * a.weight.cols * (a.a.rows + 1),
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t j = begin; j < end; ++j) {
                            const float norm = row_norm<decltype(type)>(a, j);
                            a.norm[j] = norm;
                            a.scale[j] = norm == 0.0f ? 0.0f : a.magnitude[j] / norm;
                          }
                        });
  });
}

void scale_columns(const ScaleColumnsArgs& a) {
  with_type(a.x.dtype, [&](auto type) {
    simd::parallel_rows(a.x.rows, 3 * a.x.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) scale_row<decltype(type)>(a, r);
    });
  });
}

void dot_columns(const DotColumnsArgs& a) {
  with_type(a.x.dtype, [&](auto type) {
    simd::parallel_rows((a.x.cols + kColumns - 1) / kColumns, 2 * a.x.rows * kColumns,
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t block = begin; block < end; ++block) {
                            const std::int64_t first = block * kColumns;
                            const std::int64_t left = a.x.cols - first;
                            dot_block<decltype(type)>(a, first, left < kColumns ? left : kColumns);
                          }
                        });
  });
}

}  // namespace octet::ops::cpu
