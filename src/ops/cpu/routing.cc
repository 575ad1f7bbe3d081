#include "octet/ops/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/rows.h"

namespace octet::ops::cpu {

void route(const RouteArgs& args);
void deal(const DealArgs& args);
void weighted_rows(const WeightedRowsArgs& args);

namespace {

// Whether a probability is taken before another one of a higher number.
bool goes_before(float p, float than) {
  return std::isnan(p) ? !std::isnan(than) : p > than;
}

void route_token(const RouteArgs& a, std::int64_t token, std::vector<float>& p) {
  const float* const x = row_of<float>(a.logits, token);
  const std::int64_t experts = a.logits.cols;
  float highest = x[0];
  for (std::int64_t e = 1; e < experts; ++e) highest = x[e] > highest ? x[e] : highest;
  float sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    p[static_cast<std::size_t>(e)] = std::exp(x[e] - highest);
    sum += p[static_cast<std::size_t>(e)];
  }
  for (float& one : p) one /= sum;
  std::int32_t* const taken = a.experts + token * a.taken;
  float* const weights = a.weights + token * a.taken;
  float of_taken = 0;
  for (std::int64_t j = 0; j < a.taken; ++j) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e) {
      const float one = p[static_cast<std::size_t>(e)];
      if (one < 0) continue;  // it is taken already
      if (best < 0 || goes_before(one, p[static_cast<std::size_t>(best)])) best = e;
    }
    taken[j] = static_cast<std::int32_t>(best);
    weights[j] = p[static_cast<std::size_t>(best)];
    of_taken += weights[j];
    p[static_cast<std::size_t>(best)] = -1;
  }
  if (!a.normalised) return;
  for (std::int64_t j = 0; j < a.taken; ++j) weights[j] /= of_taken;
}

template <typename T>
OCTET_SIMD void weigh_row(const WeightedRowsArgs& a, std::int64_t token, T) {
  const std::int32_t* const places = a.places + token * a.taken;
  const float* const weights = a.weights + token * a.taken;
  for (std::int64_t begin = 0; begin < a.out.cols; begin += kChunk) {
    const std::int64_t n = chunk_length(begin, a.out.cols);
    float sum[kChunk] = {};
    for (std::int64_t j = 0; j < a.taken; ++j) {
      const T* const __restrict x = row_of<T>(a.x, places[j]) + begin;
      const float weight = weights[j];
      for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * simd::load(x[i]);
    }
    if (a.addend.data != nullptr) {
      const T* const addend = row_of<T>(a.addend, token) + begin;
      for (std::int64_t i = 0; i < n; ++i) sum[i] = simd::load(addend[i]) + sum[i];
    }
    store(sum, row_of<T>(a.out, token) + begin, n);
  }
}

}  // namespace

void route(const RouteArgs& args) {
  const std::int64_t experts = args.logits.cols;
  simd::parallel_rows(args.logits.rows, (16 + args.taken) * experts,
                      [&](std::int64_t begin, std::int64_t end) {
                        std::vector<float> probabilities(static_cast<std::size_t>(experts));
                        for (std::int64_t token = begin; token < end; ++token)
                          route_token(args, token, probabilities);
                      });
}

void deal(const DealArgs& a) {
  const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::fill_n(a.begins, a.count + 1, 0);
  for (std::int64_t i = 0; i < a.tokens * a.taken; ++i) ++a.begins[a.experts[i] + 1];
  std::partial_sum(a.begins, a.begins + a.count + 1, a.begins);
  std::vector<std::int32_t> next(a.begins, a.begins + a.count);  // rows that are still free
  std::vector<std::pair<std::int32_t, float>> own(index(a.taken));
  for (std::int64_t token = 0; token < a.tokens; ++token) {
    const std::int64_t first = token * a.taken;
    for (std::int64_t j = 0; j < a.taken; ++j) own[index(j)] = {a.experts[first + j], a.weights[first + j]};
    std::ranges::sort(own, {}, &std::pair<std::int32_t, float>::first);
    for (std::int64_t j = 0; j < a.taken; ++j) {
      const auto [expert, weight] = own[index(j)];
      const std::int32_t row = next[index(expert)]++;
      a.row_tokens[row] = static_cast<std::int32_t>(token);
      a.places[first + j] = row;
      a.place_weights[first + j] = weight;
    }
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
