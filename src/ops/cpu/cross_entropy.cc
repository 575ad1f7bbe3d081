#include <cmath>
#include <limits>

#include "cpu/rows.h"
#include "kernels.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {
namespace {

// Returns the largest logit of a row. NaNs are ignored here; they appear in the sum.
template <typename T>
OCTET_INLINE float row_max(const T* x, std::int64_t vocabulary) {
  float lane[kLanes];
  for (int j = 0; j < kLanes; ++j) lane[j] = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + kLanes <= vocabulary; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const float v = simd::load(x[i + j]);
      lane[j] = v > lane[j] ? v : lane[j];
    }
  }
  float most = lane[0];
  for (int j = 1; j < kLanes; ++j) most = lane[j] > most ? lane[j] : most;
  for (; i < vocabulary; ++i) {
    const float v = simd::load(x[i]);
    most = v > most ? v : most;
  }
  return most;
}

// Returns the logit after the cap.
template <bool capped>
OCTET_INLINE float capped_logit(float x, float soft_cap) {
  return capped ? soft_cap * simd::tanh(x / soft_cap) : x;
}

// Processes one row: finds the maximum, then sums the exponentials. If T is f32, the exponentials replace the
// logits, so that the gradient needs only a multiplication. If T is bf16, storing them would round twice, so
// they are recomputed.
template <typename T, bool capped>
OCTET_SIMD void cross_entropy_row(const CrossEntropyArgs& a, std::int64_t row) {
  constexpr bool keeps = std::is_same_v<T, float> && !capped;
  const std::int64_t vocabulary = a.logits.cols;
  const std::int64_t target = a.targets[row];
  T* x = row_of<T>(a.logits, row);
  // The cap is monotonic: the largest capped logit is the capped largest logit.
  const float most = capped_logit<capped>(row_max(x, vocabulary), a.soft_cap);
  const float at_target = capped_logit<capped>(simd::load(x[target]), a.soft_cap);
  float e[kChunk];
  double sum = 0;
  for (std::int64_t c = 0; c < vocabulary; c += kChunk) {
    const std::int64_t n = chunk_length(c, vocabulary);
    for (std::int64_t i = 0; i < n; ++i) {
      e[i] = simd::exp(capped_logit<capped>(simd::load(x[c + i]), a.soft_cap) - most);
    }
    if (keeps && a.gradient) store(e, x + c, n);
    Lanes lanes;
    add_terms(
        lanes, n, [&](std::int64_t i) __attribute__((always_inline)) { return e[i]; });
    sum += static_cast<double>(total(lanes));
  }
  if (a.row_loss) {
    a.row_loss[row] =
        static_cast<float>(std::log(sum) + static_cast<double>(most) - static_cast<double>(at_target));
  }
  if (!a.gradient) return;
  const float inverse = static_cast<float>(1.0 / sum);
  if constexpr (keeps) {
    for (std::int64_t i = 0; i < vocabulary; ++i) x[i] = x[i] * inverse;
    x[target] -= 1.0f;
  } else {
    float p_target = simd::exp(at_target - most) * inverse - 1.0f;
    if constexpr (capped) {
      const float t = at_target / a.soft_cap;
      p_target *= 1.0f - t * t;
    }
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      const float logit = capped_logit<capped>(simd::load(x[i]), a.soft_cap);
      float p = simd::exp(logit - most) * inverse;
      if constexpr (capped) {
        const float t = logit / a.soft_cap;
        p *= 1.0f - t * t;
      }
      simd::store(x[i], p);
    }
    simd::store(x[target], p_target);
  }
}

template <typename T>
OCTET_SIMD void cap_row(T* x, float cap, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) simd::store(x[i], capped_logit<true>(simd::load(x[i]), cap));
}

template <typename T>
OCTET_SIMD void clear_row(T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) simd::store(x[i], 0.0f);
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& a) {
  const std::int64_t rows = a.logits.rows, vocabulary = a.logits.cols;
  for (std::int64_t r = 0; r < rows; ++r) {
    check(a.targets[r] < vocabulary, "cross_entropy: a target lies outside the vocabulary");
  }
  with_type(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(rows, 16 * vocabulary, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        if (a.targets[r] < 0) {
          if (a.row_loss) a.row_loss[r] = 0.0f;
          if (a.gradient) clear_row(row_of<T>(a.logits, r), vocabulary);
        } else if (a.soft_cap > 0) {
          cross_entropy_row<T, true>(a, r);
        } else {
          cross_entropy_row<T, false>(a, r);
        }
      }
    });
  });
}

void soft_cap(const SoftCapArgs& a) {
  with_type(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.x.rows, 8 * a.x.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) cap_row(row_of<T>(a.x, r), a.cap, a.x.cols);
    });
  });
}

void add_sum(const AddSumArgs& a) {
  constexpr std::int64_t block = 1024;
  double all = 0;
  for (std::int64_t b = 0; b < a.count; b += block) {
    double sum = 0;
    const std::int64_t end = std::min(a.count, b + block);
    for (std::int64_t i = b; i < end; ++i) sum += static_cast<double>(a.values[i]);
    all += sum;
  }
  if (a.count > 0) *a.total += all;
}

}  // namespace octet::ops::cpu
