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

// The parts of the gradient of a row that is not plain.
struct RowParts {
  float factor = 1;     ///< of the gradient
  float uniform = 0;    ///< subtracted from each probability: smoothing / vocabulary
  float at_target = 1;  ///< subtracted from the probability of the target: 1 - smoothing
};

// Returns whether the target is the most probable token of a row, and the first of equally probable ones.
template <typename T, bool capped>
OCTET_INLINE bool is_hit(const T* x, std::int64_t target, float at_target, float most, float soft_cap) {
  if (!(at_target == most)) return false;
  for (std::int64_t i = 0; i < target; ++i) {
    if (capped_logit<capped>(simd::load(x[i]), soft_cap) == most) return false;
  }
  return true;
}

// Writes the loss of a row that is not plain, and returns the parts of its gradient. `of_target`: the loss of
// the target. `mean_loss`: the mean loss of all tokens; unused without smoothing.
inline RowParts varied_row(const CrossEntropyArgs& a, std::int64_t row, double of_target, double mean_loss) {
  RowParts parts;
  double loss = of_target;
  if (a.smoothing > 0) {
    const auto e = static_cast<double>(a.smoothing);
    loss = (1 - e) * of_target + e * mean_loss;
    parts.uniform = static_cast<float>(e / static_cast<double>(a.logits.cols));
    parts.at_target = static_cast<float>(1 - e);
  }
  double factor = a.by_probability ? std::exp(-of_target) : 1;
  if (a.factors_loss) factor *= static_cast<double>(a.row_factors[row]);
  if (a.row_loss) a.row_loss[row] = static_cast<float>(loss * factor);
  if (a.row_factors && !a.factors_loss) factor *= static_cast<double>(a.row_factors[row]);
  parts.factor = static_cast<float>(factor);
  return parts;
}

// Processes one row: finds the maximum, then sums the exponentials. If T is f32, the exponentials replace the
// logits, so that the gradient needs only a multiplication. If T is bf16, storing them would round twice, so
// they are recomputed. varies: CrossEntropyArgs::varies().
template <typename T, bool capped, bool varies>
OCTET_SIMD void cross_entropy_row(const CrossEntropyArgs& a, std::int64_t row) {
  constexpr bool keeps = std::is_same_v<T, float> && !capped;
  const std::int64_t vocabulary = a.logits.cols;
  const std::int64_t target = a.targets[row];
  T* x = row_of<T>(a.logits, row);
  // The cap is monotonic: the largest capped logit is the capped largest logit.
  const float most = capped_logit<capped>(row_max(x, vocabulary), a.soft_cap);
  const float at_target = capped_logit<capped>(simd::load(x[target]), a.soft_cap);
  float e[kChunk];
  double sum = 0, sum_of_logits = 0;
  if (varies && a.row_hits)
    a.row_hits[row] = is_hit<T, capped>(x, target, at_target, most, a.soft_cap) ? 1.0f : 0.0f;
  for (std::int64_t c = 0; c < vocabulary; c += kChunk) {
    const std::int64_t n = chunk_length(c, vocabulary);
    if (varies && a.smoothing > 0) {
      Lanes lanes;
      add_terms(
          lanes, n, [&](std::int64_t i) __attribute__((always_inline)) {
            return capped_logit<capped>(simd::load(x[c + i]), a.soft_cap);
          });
      sum_of_logits += static_cast<double>(total(lanes));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      e[i] = simd::exp(capped_logit<capped>(simd::load(x[c + i]), a.soft_cap) - most);
    }
    if (keeps && a.gradient) store(e, x + c, n);
    Lanes lanes;
    add_terms(
        lanes, n, [&](std::int64_t i) __attribute__((always_inline)) { return e[i]; });
    sum += static_cast<double>(total(lanes));
  }
  const double normalizer = std::log(sum) + static_cast<double>(most);
  const double of_target = normalizer - static_cast<double>(at_target);
  RowParts parts;
  if constexpr (varies) {
    parts = varied_row(a, row, of_target, normalizer - sum_of_logits / static_cast<double>(vocabulary));
  } else if (a.row_loss) {
    a.row_loss[row] = static_cast<float>(of_target);
  }
  if (!a.gradient) return;
  const float inverse = static_cast<float>(1.0 / sum);
  // Returns the gradient of a nominal logit with probability p, without the target's part.
  const auto varied = [&](float p) __attribute__((always_inline)) {
    return varies ? (p - parts.uniform) * parts.factor : p;
  };
  if constexpr (keeps) {
    for (std::int64_t i = 0; i < vocabulary; ++i) x[i] = varied(x[i] * inverse);
    x[target] -= varies ? parts.at_target * parts.factor : 1.0f;
  } else {
    float p_target = simd::exp(at_target - most) * inverse;
    p_target = varies ? (p_target - parts.uniform - parts.at_target) * parts.factor : p_target - 1.0f;
    if constexpr (capped) {
      const float t = at_target / a.soft_cap;
      p_target *= 1.0f - t * t;
    }
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      const float logit = capped_logit<capped>(simd::load(x[i]), a.soft_cap);
      float p = varied(simd::exp(logit - most) * inverse);
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
          if (a.row_hits) a.row_hits[r] = 0.0f;
          if (a.gradient) clear_row(row_of<T>(a.logits, r), vocabulary);
        } else if (a.soft_cap > 0) {
          a.varies() ? cross_entropy_row<T, true, true>(a, r) : cross_entropy_row<T, true, false>(a, r);
        } else {
          a.varies() ? cross_entropy_row<T, false, true>(a, r) : cross_entropy_row<T, false, false>(a, r);
        }
      }
    });
  });
}

namespace {

// Returns (H / 3)^power of the `count` largest values, in any order.
double entropy_factor(const float* largest, int count, float power) {
  double most = static_cast<double>(largest[0]);
  for (int i = 1; i < count; ++i) most = std::max(most, static_cast<double>(largest[i]));
  double sum = 0, weighted = 0;
  for (int i = 0; i < count; ++i) {
    const double below = static_cast<double>(largest[i]) - most, e = std::exp(below);
    sum += e;
    weighted += e > 0 ? below * e : 0.0;
  }
  return std::pow(std::max(0.0, std::log(sum) - weighted / sum) / 3.0, static_cast<double>(power));
}

// Collects the largest logits of a row in descending order.
template <typename T>
OCTET_SIMD void entropy_of_row(const RowEntropyArgs& a, std::int64_t row) {
  const T* x = row_of<T>(a.logits, row);
  float largest[kEntropyLogits];
  int count = 0;
  for (std::int64_t i = 0; i < a.logits.cols; ++i) {
    const float v = simd::load(x[i]);
    if (count == kEntropyLogits && !(v > largest[kEntropyLogits - 1])) continue;
    int at = count < kEntropyLogits ? count++ : kEntropyLogits - 1;
    for (; at > 0 && v > largest[at - 1]; --at) largest[at] = largest[at - 1];
    largest[at] = v;
  }
  for (int i = 0; i < count && a.soft_cap > 0; ++i) largest[i] = capped_logit<true>(largest[i], a.soft_cap);
  a.out[row] = static_cast<float>(entropy_factor(largest, count, a.power));
}

}  // namespace

void row_entropy(const RowEntropyArgs& a) {
  with_type(a.logits.dtype, [&](auto type) {
    simd::parallel_rows(a.logits.rows, 4 * a.logits.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) entropy_of_row<decltype(type)>(a, r);
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
