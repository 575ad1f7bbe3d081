// Parts of the norms of rows (rms_norm, layer_norm).
#pragma once

#include <type_traits>

#include "cpu/rows.h"

namespace octet::ops::cpu {

/// The compute type of a norm. An fp32 output is rounded once. The output is next quantised to FP8, where
/// three roundings of its largest element would shift all other elements alike.
template <typename T>
using WideNorm = std::conditional_t<std::is_same_v<T, float>, double, float>;

/// A sum by lanes, with the order of Lanes.
template <typename W>
struct WideLanes {
  W lane[kLanes] = {};
  template <typename F>
  OCTET_INLINE void add(std::int64_t n, F f) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) lane[j] += f(i + j);
    }
    for (int j = 0; i + j < n; ++j) lane[j] += f(i + j);
  }
  OCTET_INLINE W total() {
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    }
    return lane[0];
  }
};

/// Loads a norm's input: `residual`, or residual + delta rounded to T if there is a delta.
template <typename T>
OCTET_INLINE void load_sum(const T* residual, const T* delta, float* __restrict x, std::int64_t n) {
  load(residual, x, n);
  if (!delta) return;
  for (std::int64_t i = 0; i < n; ++i) x[i] = simd::rounded_to<T>(x[i] + simd::load(delta[i]));
}

/// Adds the partial sums [blocks, hidden] to `to`, [hidden], in the order of the blocks. Does nothing if `to`
/// is null.
void add_partial_sums(const float* partial, std::int64_t blocks, std::int64_t hidden, float* to);

}  // namespace octet::ops::cpu
