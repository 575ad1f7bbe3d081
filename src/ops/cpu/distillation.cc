#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/rows.h"
#include "distillation_rule.h"
#include "kernels.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {
namespace {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

/// Returns the logit after the cap. -infinity marks a listed token, which keeps this value.
OCTET_INLINE float distilled_logit(float x, float cap) {
  return cap > 0 && x != kNoLogit ? cap * simd::tanh(x / cap) : x;
}

OCTET_INLINE double as_double(float x) {
  return static_cast<double>(x);
}

/// ln Σ exp(x / temperature) of a row, and its first largest logit.
struct RowSum {
  double normalizer = 0;
  float most = kNoLogit;
  std::int64_t best = 0;
};

/// Capped logits of a row, as floats.
template <typename T>
OCTET_SIMD void read_row(const T* x, float cap, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = distilled_logit(simd::load(x[i]), cap);
}

OCTET_SIMD RowSum sum_row(const float* x, std::int64_t n, double temperature) {
  RowSum row;
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] > row.most) row.most = x[i], row.best = i;
  }
  const auto inverse = static_cast<float>(1 / temperature);
  const float most = row.most;
  double sum = 0;
  for (std::int64_t c = 0; c < n; c += kChunk) {
    Lanes lanes;
    add_terms(
        lanes, chunk_length(c, n), [&](std::int64_t i) __attribute__((always_inline)) {
          return x[c + i] == kNoLogit ? 0.0f : simd::exp((x[c + i] - most) * inverse);
        });
    sum += as_double(total(lanes));
  }
  row.normalizer = as_double(most) / temperature + std::log(sum);
  return row;
}

double log_sum(const std::vector<double>& x) {
  const double most = *std::ranges::max_element(x);
  double sum = 0;
  for (const double value : x) sum += std::exp(value - most);
  return most + std::log(sum);
}

/// Writes the results of a row.
void put_row(const DistillationArgs& a, std::int64_t r, double divergence, double cross_entropy,
             bool agrees) {
  a.row_divergence[r] = static_cast<float>(divergence);
  a.row_cross_entropy[r] = static_cast<float>(cross_entropy);
  a.row_loss[r] = static_cast<float>((1 - a.rule.ratio) * cross_entropy + a.rule.ratio * divergence);
  a.row_agreement[r] = agrees ? 1.0f : 0.0f;
}

/// Returns the gradient of the cap at a capped logit.
double cap_slope(float logit, float cap) {
  if (cap <= 0) return 1;
  const double t = as_double(logit) / as_double(cap);
  return 1 - t * t;
}

/// Buffers of a thread.
struct RowBuffers {
  std::vector<float> model, teacher;
  std::vector<double> own, wanted, slopes;
};

template <typename T>
void listed_row(const DistillationArgs& a, std::int64_t r, RowBuffers& buffers) {
  const std::int64_t vocabulary = a.logits.cols;
  T* const x = row_of<T>(a.logits, r);
  const std::int32_t* const ids = a.ids + r * a.ranks;
  std::vector<float>& z = buffers.model;
  z.resize(static_cast<std::size_t>(vocabulary));
  read_row(x, a.soft_cap, vocabulary, z.data());
  const auto target = static_cast<std::size_t>(a.targets[r]);
  const float at_target = z[target];
  const bool buckets = a.rule.rest != TeacherRest::renormalise && a.ranks < vocabulary;
  // Logits of the outcomes: of the model at temperature 1, and of the teacher.
  std::vector<double>&own = buffers.own, &wanted = buffers.wanted;
  own.clear(), wanted.clear();
  float* const kept = a.kept + r * a.ranks;
  for (std::int64_t k = 0; k < a.ranks; ++k) {
    float& logit = z[static_cast<std::size_t>(ids[k])];
    own.push_back(as_double(kept[k] = logit));
    wanted.push_back(as_double(a.logprobs[r * a.ranks + k]));
    logit = kNoLogit;
  }
  const double most = *std::ranges::max_element(own);
  const double first = own[static_cast<std::size_t>(std::ranges::max_element(wanted) - wanted.begin())];
  RowSum others;
  bool agrees = first == most;
  std::vector<double> all = own;
  if (a.ranks < vocabulary) {
    others = sum_row(z.data(), vocabulary, 1);
    all.push_back(others.normalizer);
    agrees = agrees && !(as_double(others.most) > first);
  }
  const double normalizer = log_sum(all);
  if (buckets) own.push_back(others.normalizer), wanted.push_back(log_rest(a.rest[r]));
  const double temperature = a.rule.temperature;
  for (double& value : own) value /= temperature;
  for (double& value : wanted) value /= temperature;
  const double log_q = log_sum(own), log_p = log_sum(wanted);
  double divergence = 0, slopes = 0;
  buffers.slopes.clear();
  for (std::size_t i = 0; i < own.size(); ++i) {
    const bool left_out = a.rule.rest == TeacherRest::zero && i == static_cast<std::size_t>(a.ranks);
    const DivergenceTerm term =
        left_out ? DivergenceTerm{} : divergence_term(a.rule.beta, wanted[i] - log_p, own[i] - log_q);
    divergence += term.loss;
    slopes += term.slope;
    buffers.slopes.push_back(term.slope);
  }
  put_row(a, r, divergence, normalizer - as_double(at_target), agrees);
  if (!a.gradient) return;
  const auto of_outcome = [&](std::size_t i) {
    return (buffers.slopes[i] - std::exp(own[i] - log_q) * slopes) / temperature;
  };
  const auto ranks = static_cast<std::size_t>(a.ranks);
  const ListedGradient g = listed_gradient(a.rule.ratio, buckets ? of_outcome(ranks) : 0.0,
                                           buckets ? others.normalizer - normalizer : 0.0);
  const auto norm = static_cast<float>(normalizer), factor = static_cast<float>(g.others);
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    const float logit = z[static_cast<std::size_t>(i)];
    if (logit == kNoLogit) continue;
    float d = simd::exp(logit - norm) * factor;
    if (i == a.targets[r]) d -= static_cast<float>(g.cross);
    simd::store(x[i], d * static_cast<float>(cap_slope(logit, a.soft_cap)));
  }
  for (std::size_t k = 0; k < ranks; ++k) {
    double d = std::exp(as_double(kept[k]) - normalizer) * g.cross + a.rule.ratio * of_outcome(k);
    if (ids[k] == a.targets[r]) d -= g.cross;
    simd::store(x[ids[k]], static_cast<float>(d * cap_slope(kept[k], a.soft_cap)));
  }
}

template <typename T>
void dense_row(const DistillationArgs& a, std::int64_t r, RowBuffers& buffers) {
  const std::int64_t vocabulary = a.logits.cols;
  const auto count = static_cast<std::size_t>(vocabulary);
  T* const x = row_of<T>(a.logits, r);
  buffers.model.resize(count), buffers.teacher.resize(count);
  float *const z = buffers.model.data(), *const y = buffers.teacher.data();
  read_row(x, a.soft_cap, vocabulary, z);
  read_row(row_of<T>(a.teacher, r), 0.0f, vocabulary, y);
  const double temperature = a.rule.temperature;
  const RowSum own = sum_row(z, vocabulary, temperature), wanted = sum_row(y, vocabulary, temperature);
  const double normalizer = temperature == 1 ? own.normalizer : sum_row(z, vocabulary, 1).normalizer;
  buffers.slopes.resize(count);
  double divergence = 0, slopes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const DivergenceTerm term =
        divergence_term(a.rule.beta, as_double(y[i]) / temperature - wanted.normalizer,
                        as_double(z[i]) / temperature - own.normalizer);
    divergence += term.loss;
    slopes += term.slope;
    buffers.slopes[i] = term.slope;
  }
  const auto target = static_cast<std::size_t>(a.targets[r]);
  put_row(a, r, divergence, normalizer - as_double(z[target]),
          z[static_cast<std::size_t>(wanted.best)] == own.most);
  if (!a.gradient) return;
  for (std::size_t i = 0; i < count; ++i) {
    const double q = std::exp(as_double(z[i]) / temperature - own.normalizer);
    double d = (1 - a.rule.ratio) * std::exp(as_double(z[i]) - normalizer) +
               a.rule.ratio * (buffers.slopes[i] - q * slopes) / temperature;
    if (i == target) d -= 1 - a.rule.ratio;
    simd::store(x[i], static_cast<float>(d * cap_slope(z[i], a.soft_cap)));
  }
}

}  // namespace

void distillation(const DistillationArgs& a) {
  const std::int64_t rows = a.logits.rows, vocabulary = a.logits.cols;
  const bool dense = a.teacher.data != nullptr;
  const auto inside = [&](std::int32_t id) { return id >= 0 && id < vocabulary; };
  for (std::int64_t r = 0; r < rows; ++r) {
    check(a.targets[r] < vocabulary, "distillation: a target is outside the vocabulary");
    if (dense || a.targets[r] < 0) continue;
    check(std::all_of(a.ids + r * a.ranks, a.ids + (r + 1) * a.ranks, inside),
          "distillation: a listed token is outside the vocabulary");
  }
  with_type(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(rows, (dense ? 128 : 16) * vocabulary, [&](std::int64_t begin, std::int64_t end) {
      RowBuffers buffers;
      for (std::int64_t r = begin; r < end; ++r) {
        if (a.targets[r] < 0) {
          a.row_loss[r] = a.row_divergence[r] = a.row_cross_entropy[r] = a.row_agreement[r] = 0.0f;
          T* const x = row_of<T>(a.logits, r);
          if (a.gradient) std::fill(x, x + vocabulary, T{});
        } else {
          dense ? dense_row<T>(a, r, buffers) : listed_row<T>(a, r, buffers);
        }
      }
    });
  });
}

}  // namespace octet::ops::cpu
