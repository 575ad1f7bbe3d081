#include <cfloat>
#include <cmath>

#include "cpu/row_quantizer.h"
#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

template <typename T>
OCTET_SIMD void quantize_row(const ConstMatrix& x, RowQuantizer& quantizer, std::int64_t row) {
  float chunk[kChunk];
  for (std::int64_t c = 0; c < x.cols; c += kChunk) {
    const std::int64_t n = chunk_length(c, x.cols);
    load(row_of<T>(x, row) + c, chunk, n);
    quantizer.take(chunk, row, c, n);
  }
  quantizer.finish_row();
}

void quantize_into(const ConstMatrix& x, const QuantizeInto& into) {
  with_type(x.dtype, [&](auto type) {
    simd::parallel_rows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
      RowQuantizer quantizer(into, x.rows, x.cols);
      for (std::int64_t r = begin; r < end; ++r) quantize_row<decltype(type)>(x, quantizer, r);
    });
  });
}

// The inverse of any returned scale is finite: 1 / FLT_MAX is subnormal but not zero.
float finite_scale(float scale) {
  return std::isinf(scale) ? FLT_MAX : scale;
}

}  // namespace

void amax(const AmaxArgs& a) {
  if (a.skip != nullptr && *a.skip != 0) return;
  QuantizeInto only;
  only.amax = a.amax;
  quantize_into(a.x, only);
}

void quantize(const QuantizeArgs& a) {
  quantize_into(a.x, a.into);
}

void quantize_each(const QuantizeEachArgs& a) {
  if (a.skip != nullptr && *a.skip != 0) return;
  for (std::int64_t i = 0; i < a.count; ++i) {
    const QuantizeArgs one = matrix_of(a, i);
    quantize_into(one.x, one.into);
  }
}

void transpose(const TransposeArgs& a) {
  // Copies in tiles, so that source and destination stay in the cache.
  constexpr std::int64_t tile = 64;
  simd::parallel_rows((a.cols + tile - 1) / tile, tile * a.rows, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t end = std::min(a.cols, last * tile);
    for (std::int64_t r0 = 0; r0 < a.rows; r0 += tile) {
      for (std::int64_t c = first * tile; c < end; ++c) {
        for (std::int64_t r = r0; r < std::min(a.rows, r0 + tile); ++r) {
          a.to[c * a.rows + r] = a.from[r * a.cols + c];
        }
      }
    }
  });
}

void current_scale(const CurrentScaleArgs& a) {
  for (std::int64_t i = 0; i < a.count; ++i) {
    const float amax = a.amax[i];
    float scale = 1.0f;
    if (std::isfinite(amax) && amax > 0) {
      scale = finite_scale(fp8_max(static_cast<DType>(a.formats[i])) / amax);
    }
    a.scale[i] = scale;
    a.scale_inv[i * a.inverse_stride] = 1.0f / scale;
  }
}

void delayed_scale(const DelayedScaleArgs& a) {
  for (std::int64_t i = 0; i < a.count; ++i) {
    const float latest = a.amax[i];
    a.amax[i] = 0.0f;
    if (latest != 0) {  // also if NaN
      float most = 0.0f;
      for (std::int64_t k = 0; k + 1 < a.length; ++k) {
        const float value = a.history[(k + 1) * a.stride + i];
        a.history[k * a.stride + i] = value;
        most = std::fmax(most, value);
      }
      a.history[(a.length - 1) * a.stride + i] = latest;
      // fmax ignores NaN, like TransformerEngine.
      const float amax = a.most_recent ? latest : std::fmax(most, latest);
      if (std::isfinite(amax) && amax > 0) {
        const float scaled_max = std::ldexp(fp8_max(static_cast<DType>(a.formats[i])), -a.margin);
        a.scale[i] = finite_scale(scaled_max / amax);
      }
    }
    const float inverse = 1.0f / a.scale[i];
    if (a.scale_inv[i * a.inverse_stride] != inverse) a.scale_inv[i * a.inverse_stride] = inverse;
  }
}

}  // namespace octet::ops::cpu
