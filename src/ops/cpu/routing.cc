#include "octet/ops/routing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/rows.h"
#include "expert_limit.h"
#include "octet/base/index.h"

namespace octet::ops::cpu {

void route(const RouteArgs& args);
void deal(const DealArgs& args);
void limit_rows(const LimitRowsArgs& args);
void weighted_rows(const WeightedRowsArgs& args);
void add_load(const AddLoadArgs& args);
void balance_loss(const BalanceLossArgs& args);
void add_log_sums(const AddLogSumsArgs& args);
void z_loss(const ZLossArgs& args);
void route_backward(const RouteBackwardArgs& args);
void weigh_backward(const WeighBackwardArgs& args);
void gated_rows(const GatedRowsArgs& args);
void gated_rows_backward(const GatedRowsBackwardArgs& args);

namespace {

// Returns whether probability p is selected before `than`, which belongs to a lower expert number.
bool goes_before(float p, float than) {
  return std::isnan(p) ? !std::isnan(than) : p > than;
}

/// Writes softmax(x) of a row of logits.
void softmax(const float* x, std::vector<float>& p) {
  float highest = x[0];
  for (std::size_t e = 1; e < p.size(); ++e) highest = x[e] > highest ? x[e] : highest;
  float sum = 0;
  for (std::size_t e = 0; e < p.size(); ++e) {
    p[e] = std::exp(x[e] - highest);
    sum += p[e];
  }
  for (float& one : p) one /= sum;
}

/// Returns ln Σ exp(x) of a row of logits.
float log_sum(const float* x, std::size_t count) {
  float highest = x[0];
  for (std::size_t e = 1; e < count; ++e) highest = x[e] > highest ? x[e] : highest;
  float sum = 0;
  for (std::size_t e = 0; e < count; ++e) sum += std::exp(x[e] - highest);
  return highest + std::log(sum);
}

/// Returns the number of labels that have a loss.
double count_labels(const std::int32_t* targets, std::int64_t labels) {
  return static_cast<double>(
      std::count_if(targets, targets + labels, [](std::int32_t target) { return target >= 0; }));
}

/// A sigmoid score and its derivative.
struct Sigmoid {
  explicit Sigmoid(float x) {
    const double t = std::exp(-std::abs(static_cast<double>(x)));
    score = static_cast<float>((x < 0 ? t : 1.0) / (1.0 + t));
    slope = static_cast<float>(t / ((1.0 + t) * (1.0 + t)));
  }
  float score, slope;
};

/// Buffers of a thread for route().
struct Choice {
  explicit Choice(const RouteArgs& a)
      : p(static_cast<std::size_t>(a.logits.cols)),
        choice(p.size()),
        of_groups(static_cast<std::size_t>(a.groups)),
        open(p.size()) {}
  std::vector<float> p, choice;  ///< scores of experts, without and with bias
  std::vector<float> of_groups;
  std::vector<char> open;  ///< experts that can still be selected
};

/// Returns the first of the best open values from `begin` to `end`.
std::size_t best_of(const std::vector<float>& values, const std::vector<char>& open, std::size_t begin,
                    std::size_t end) {
  std::size_t best = end;
  for (std::size_t i = begin; i < end; ++i) {
    if (open[i] == 0) continue;
    if (best == end || goes_before(values[i], values[best])) best = i;
  }
  return best;
}

/// Opens the experts of the best groups.
void open_groups(const RouteArgs& a, Choice& own) {
  const auto groups = static_cast<std::size_t>(a.groups), size = own.p.size() / groups;
  if (a.taken_groups == a.groups) {
    std::ranges::fill(own.open, 1);
    return;
  }
  std::vector<char> all(own.p.size(), 1);
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t best = best_of(own.choice, all, g * size, (g + 1) * size);
    own.of_groups[g] = own.choice[best];
    if (a.group_best == 1) continue;
    all[best] = 0;
    const std::size_t second = best_of(own.choice, all, g * size, (g + 1) * size);
    own.of_groups[g] += own.choice[second];
  }
  std::vector<char> left(groups, 1);
  std::ranges::fill(own.open, 0);
  for (std::int64_t i = 0; i < a.taken_groups; ++i) {
    const std::size_t g = best_of(own.of_groups, left, 0, groups);
    left[g] = 0;
    std::fill_n(own.open.begin() + static_cast<std::ptrdiff_t>(g * size), size, 1);
  }
}

void route_token(const RouteArgs& a, std::int64_t token, Choice& own) {
  const float* const logits = row_of<float>(a.logits, token);
  const bool sigmoid = a.scores == RouterScores::sigmoid;
  if (!sigmoid) softmax(logits, own.p);
  for (std::size_t e = 0; e < own.p.size(); ++e) {
    if (sigmoid) own.p[e] = Sigmoid(logits[e]).score;
    own.choice[e] = a.bias == nullptr ? own.p[e] : own.p[e] + a.bias[e];
  }
  const std::int32_t* const given =
      a.given == nullptr || a.given[token * a.taken] < 0 ? nullptr : a.given + token * a.taken;
  if (given == nullptr) open_groups(a, own);
  std::int32_t* const taken = a.experts + token * a.taken;
  float* const weights = a.weights + token * a.taken;
  float of_taken = kLeastScores;
  for (std::int64_t j = 0; j < a.taken; ++j) {
    const std::size_t best = given != nullptr ? static_cast<std::size_t>(given[j])
                                              : best_of(own.choice, own.open, 0, own.p.size());
    taken[j] = static_cast<std::int32_t>(best);
    weights[j] = own.p[best];
    of_taken += weights[j];
    own.open[best] = 0;
  }
  for (std::int64_t j = 0; j < a.taken; ++j) {
    if (a.normalised) weights[j] /= of_taken;
    weights[j] *= a.scale;
  }
}

template <typename T>
OCTET_SIMD void weigh_row(const WeightedRowsArgs& a, std::int64_t token, T) {
  const std::int32_t* const places = a.places + token * a.taken;
  const float* const weights = a.weights == nullptr ? nullptr : a.weights + token * a.taken;
  for (std::int64_t begin = 0; begin < a.out.cols; begin += kChunk) {
    const std::int64_t n = chunk_length(begin, a.out.cols);
    float sum[kChunk] = {};
    for (std::int64_t j = 0; j < a.taken; ++j) {
      if (places[j] < 0) continue;
      const T* const __restrict x = row_of<T>(a.x, places[j]) + begin;
      const float weight = weights == nullptr ? 1.0f : weights[j];
      for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * simd::load(x[i]);
    }
    if (a.addend.data != nullptr) {
      const T* const addend = row_of<T>(a.addend, token) + begin;
      for (std::int64_t i = 0; i < n; ++i) sum[i] = simd::load(addend[i]) + sum[i];
    }
    store(sum, row_of<T>(a.out, token) + begin, n);
  }
}

/// Buffers of a thread for the backward pass of route().
struct RouteBack {
  std::vector<float> p, slope, d;     // scores, derivatives of sigmoid scores, and gradients of scores
  std::vector<float> z;               // gradients of a z-loss
  std::vector<std::int32_t> experts;  // of the token, in ascending order, as its places
};

/// Writes the gradient of the z-loss for the logits of a token.
void z_gradients(const float* logits, float slope, RouteBack& own) {
  own.z.resize(own.p.size());
  softmax(logits, own.z);
  const float factor = slope * log_sum(logits, own.z.size());
  for (float& z : own.z) z *= factor;
}

/// Writes the gradients of the scores of a token.
void score_gradients(const RouteBackwardArgs& a, std::int64_t token, RouteBack& own) {
  own.experts.assign(a.experts + token * a.taken, a.experts + (token + 1) * a.taken);
  std::ranges::transform(own.experts, own.experts.begin(), expert_number);
  std::ranges::sort(own.experts);
  const std::int32_t* const places = a.places + token * a.taken;
  const auto d_weight = [&](std::size_t j) { return places[j] < 0 ? 0.0f : a.d_weights[places[j]]; };
  // Over the selected experts: sum of scores, and weighted mean of gradients.
  float sum = kLeastScores, mean = 0;
  for (std::size_t j = 0; j < own.experts.size(); ++j) {
    sum += own.p[index(own.experts[j])];
    mean += own.p[index(own.experts[j])] * d_weight(j);
  }
  mean /= sum;
  for (std::size_t e = 0; e < own.d.size(); ++e)
    own.d[e] = a.d_probabilities == nullptr ? 0.0f : a.d_probabilities[e];
  for (std::size_t j = 0; j < own.experts.size(); ++j) {
    const float d = d_weight(j);
    own.d[index(own.experts[j])] += a.scale * (a.normalised ? (d - mean) / sum : d);
  }
}

template <typename T>
void route_token_back(const RouteBackwardArgs& a, std::int64_t token, RouteBack& own, T) {
  const float* const logits = row_of<float>(a.logits, token);
  T* const out = row_of<T>(a.d_logits, token);
  if (a.z_slope != nullptr) z_gradients(logits, *a.z_slope, own);
  const auto put = [&](std::size_t e, float d) { out[e] = T(a.z_slope == nullptr ? d : d + own.z[e]); };
  if (a.scores == RouterScores::sigmoid) {
    for (std::size_t e = 0; e < own.p.size(); ++e) {
      const Sigmoid sigmoid(logits[e]);
      own.p[e] = sigmoid.score, own.slope[e] = sigmoid.slope;
    }
    score_gradients(a, token, own);
    for (std::size_t e = 0; e < own.p.size(); ++e) put(e, own.slope[e] * own.d[e]);
    return;
  }
  softmax(logits, own.p);
  score_gradients(a, token, own);
  float inner = 0;
  for (std::size_t e = 0; e < own.p.size(); ++e) inner += own.p[e] * own.d[e];
  for (std::size_t e = 0; e < own.p.size(); ++e) put(e, own.p[e] * (own.d[e] - inner));
}

template <typename T>
void scale_row(const Matrix& m, std::int64_t row, float factor, T) {
  T* const x = row_of<T>(m, row);
  for (std::int64_t i = 0; i < m.cols; ++i) x[i] = T(factor * simd::load(x[i]));
}

template <typename T>
void weigh_row_back(const WeighBackwardArgs& a, std::int64_t place, T type) {
  const std::int64_t row = a.places[place];
  if (row < 0) return;
  const T* const x = row_of<T>(a.x, row);
  const T* const d = row_of<T>(a.d, row);
  double sum = 0;
  for (std::int64_t i = 0; i < a.x.cols; ++i)
    sum += static_cast<double>(simd::load(x[i])) * static_cast<double>(simd::load(d[i]));
  a.d_weights[row] = static_cast<float>(sum);
  scale_row(a.d, row, a.weights[place], type);
  if (a.d_y.data != nullptr) scale_row(a.d_y, row, a.weights[place], type);
}

float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

template <typename T>
void gate_row(const GatedRowsArgs& a, std::int64_t token, T) {
  const float gate = a.logits == nullptr ? 1.0f : sigmoid(a.logits[token]);
  const T *const x = row_of<T>(a.x, token), *const addend = row_of<T>(a.addend, token);
  T* const out = row_of<T>(a.out, token);
  for (std::int64_t i = 0; i < a.x.cols; ++i) out[i] = T(simd::load(addend[i]) + gate * simd::load(x[i]));
}

template <typename T>
void gate_row_back(const GatedRowsBackwardArgs& a, std::int64_t token, T) {
  const float gate = sigmoid(a.logits[token]);
  const T *const x = row_of<T>(a.x, token), *const d = row_of<T>(a.d_out, token);
  T* const d_x = row_of<T>(a.d_x, token);
  double sum = 0;
  for (std::int64_t i = 0; i < a.x.cols; ++i) {
    const float d_i = simd::load(d[i]);
    sum += static_cast<double>(simd::load(x[i])) * static_cast<double>(d_i);
    d_x[i] = T(gate * d_i);
  }
  *row_of<T>(a.d_logits, token) = T(gate * (1 - gate) * static_cast<float>(sum));
}

}  // namespace

void gated_rows(const GatedRowsArgs& args) {
  simd::parallel_rows(args.x.rows, 3 * args.x.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token)
      with_type(args.x.dtype, [&](auto type) { gate_row(args, token, type); });
  });
}

void gated_rows_backward(const GatedRowsBackwardArgs& args) {
  simd::parallel_rows(args.x.rows, 4 * args.x.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token)
      with_type(args.x.dtype, [&](auto type) { gate_row_back(args, token, type); });
  });
}

void add_load(const AddLoadArgs& a) {
  std::vector<float> p(static_cast<std::size_t>(a.logits.cols));
  for (std::int64_t token = 0; token < a.logits.rows; ++token) {
    softmax(row_of<float>(a.logits, token), p);
    for (std::size_t e = 0; e < p.size(); ++e) a.probabilities[e] += static_cast<double>(p[e]);
  }
  for (std::int64_t e = 0; e < a.logits.cols; ++e) a.counts[e] += a.begins[e + 1] - a.begins[e];
}

void balance_loss(const BalanceLossArgs& a) {
  const auto rows = static_cast<double>(a.rows);
  const double labels = count_labels(a.targets, a.labels);
  const double factor = labels * a.coefficient * static_cast<double>(a.count) / (rows * rows);
  double sum = 0;
  for (std::int64_t e = 0; e < a.count; ++e) {
    sum += a.counts[e] * a.probabilities[e];
    a.d_probabilities[e] = static_cast<float>(factor * a.counts[e]);
  }
  *a.loss_sum += factor * sum;
}

void add_log_sums(const AddLogSumsArgs& a) {
  for (std::int64_t token = 0; token < a.logits.rows; ++token) {
    const auto log =
        static_cast<double>(log_sum(row_of<float>(a.logits, token), static_cast<std::size_t>(a.logits.cols)));
    *a.sum += log * log;
  }
}

void z_loss(const ZLossArgs& a) {
  const double factor = count_labels(a.targets, a.labels) * a.coefficient / static_cast<double>(a.tokens);
  *a.slope = static_cast<float>(2 * factor);
  *a.loss_sum += factor * *a.sum;
}

void route_backward(const RouteBackwardArgs& args) {
  const auto experts = static_cast<std::size_t>(args.logits.cols);
  simd::parallel_rows(
      args.logits.rows, (16 + args.taken) * args.logits.cols, [&](std::int64_t begin, std::int64_t end) {
        RouteBack own{
            std::vector<float>(experts), std::vector<float>(experts), std::vector<float>(experts), {}, {}};
        for (std::int64_t token = begin; token < end; ++token)
          with_type(args.d_logits.dtype, [&](auto type) { route_token_back(args, token, own, type); });
      });
}

void weigh_backward(const WeighBackwardArgs& args) {
  simd::parallel_rows(args.tokens * args.taken, 3 * (args.x.cols + args.d_y.cols),
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t place = begin; place < end; ++place)
                          with_type(args.x.dtype, [&](auto type) { weigh_row_back(args, place, type); });
                      });
}

void route(const RouteArgs& args) {
  const std::int64_t experts = args.logits.cols;
  simd::parallel_rows(args.logits.rows, (16 + args.taken) * experts,
                      [&](std::int64_t begin, std::int64_t end) {
                        Choice own(args);
                        for (std::int64_t token = begin; token < end; ++token) route_token(args, token, own);
                      });
}

void deal(const DealArgs& a) {
  std::fill_n(a.begins, a.count + 1, 0);
  for (std::int64_t i = 0; i < a.tokens * a.taken; ++i) {
    if (a.experts[i] >= 0) ++a.begins[a.experts[i] + 1];
  }
  std::partial_sum(a.begins, a.begins + a.count + 1, a.begins);
  std::vector<std::int32_t> next(a.begins, a.begins + a.count);  // the next free row of each expert
  std::vector<std::pair<std::int32_t, float>> own(index(a.taken));
  for (std::int64_t token = 0; token < a.tokens; ++token) {
    const std::int64_t first = token * a.taken;
    for (std::int64_t j = 0; j < a.taken; ++j) own[index(j)] = {a.experts[first + j], a.weights[first + j]};
    std::ranges::sort(own, {}, [](const auto& one) { return expert_number(one.first); });
    for (std::int64_t j = 0; j < a.taken; ++j) {
      const auto [expert, weight] = own[index(j)];
      const std::int32_t row = expert < 0 ? -1 : next[index(expert)]++;
      a.places[first + j] = row;
      a.place_weights[first + j] = row < 0 ? 0.0f : weight;
      if (row >= 0) a.row_tokens[row] = static_cast<std::int32_t>(token);
    }
  }
}

void limit_rows(const LimitRowsArgs& a) {
  std::vector<std::pair<std::uint32_t, std::int32_t*>> own;  // order of the weight, and the choice, by token
  for (std::int32_t e = 0; e < a.count; ++e) {
    if (a.begins[e + 1] - a.begins[e] <= a.capacity) continue;
    own.clear();
    for (std::int32_t row = a.begins[e]; row < a.begins[e + 1]; ++row) {
      const std::int64_t first = a.row_tokens[row] * a.taken;
      std::int32_t* const choice = std::find(a.experts + first, a.experts + first + a.taken, e);
      own.emplace_back(weight_order(std::bit_cast<std::uint32_t>(a.weights[choice - a.experts])), choice);
    }
    std::ranges::stable_sort(own, std::greater{}, [](const auto& one) { return one.first; });
    for (auto one = own.begin() + a.capacity; one != own.end(); ++one) *one->second = -1 - e;
  }
}

void weighted_rows(const WeightedRowsArgs& args) {
  simd::parallel_rows(args.out.rows, (args.taken + 2) * args.out.cols,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t token = begin; token < end; ++token)
                          with_type(args.out.dtype, [&](auto type) { weigh_row(args, token, type); });
                      });
}

}  // namespace octet::ops::cpu
