#include "octet/ops/attention_sinks.h"

#include <cmath>

#include "cpu/rows.h"
#include "kernels.h"
#include "sink_rule.h"

namespace octet::ops::cpu {
namespace {

template <typename T>
OCTET_SIMD void scale_head(T* row, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) simd::store(row[i], simd::load(row[i]) * factor);
}

template <typename T>
OCTET_SIMD float dot(const T* a, const T* b, std::int64_t count) {
  Lanes sum;
  add_terms(sum, count, [&](std::int64_t i) { return simd::load(a[i]) * simd::load(b[i]); });
  return total(sum);
}

}  // namespace

void attention_sinks(const AttentionSinksArgs& a) {
  const std::int64_t tokens = a.out.rows, head_dim = a.heads.head_dim;
  with_type(a.out.dtype, [&](auto type) {
    simd::parallel_rows(tokens, 2 * a.out.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t h = 0; h < a.heads.q_heads; ++h) {
          float& lse = a.lse[h * tokens + t];
          const float factor = sink_factor(a.sinks[h], lse);
          lse = lse_with_sink(a.sinks[h], lse);
          scale_head(row_of<decltype(type)>(a.out, t) + h * head_dim, factor, head_dim);
        }
      }
    });
  });
}

void attention_sinks_backward(const AttentionSinksBackwardArgs& a) {
  const std::int64_t tokens = a.out.rows, head_dim = a.heads.head_dim;
  with_type(a.out.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.heads.q_heads, 2 * tokens * head_dim, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t h = begin; h < end; ++h) {
        double sum = 0;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const float both =
              dot(row_of<T>(a.out, t) + h * head_dim, row_of<T>(a.d_out, t) + h * head_dim, head_dim);
          sum += sink_weight(a.sinks[h], a.lse[h * tokens + t]) * static_cast<double>(both);
        }
        a.d_sinks[h] -= static_cast<float>(sum);
      }
    });
  });
}

}  // namespace octet::ops::cpu
