#include "octet/generate/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "octet/base/error.h"
#include "octet/base/random.h"

namespace octet::generate {
namespace {

void require_within(const char* name, double value, double low, double high, bool open_low) {
  if (std::isfinite(value) && value <= high && (open_low ? value > low : value >= low)) return;
  const auto number = [](double v) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%g", v);
    return std::string(text.data());
  };
  throw Error({.what = std::string(name) + " is outside its range",
               .expected = (open_low ? "above " : "from ") + number(low) + " to " + number(high),
               .found = number(value),
               .code = ExitCode::usage});
}

// Logits as doubles behind the penalty for what was seen and the temperature.
std::vector<double> shaped(std::span<const float> logits, const Sampling& sampling,
                           std::span<const std::int32_t> seen) {
  std::vector<double> shaped(logits.begin(), logits.end());
  if (sampling.repetition_penalty != 1.0) {
    std::vector<bool> done(logits.size());
    for (const std::int32_t id : seen) {
      const auto i = static_cast<std::size_t>(id);
      if (done[i]) continue;
      done[i] = true;
      shaped[i] =
          shaped[i] > 0 ? shaped[i] / sampling.repetition_penalty : shaped[i] * sampling.repetition_penalty;
    }
  }
  if (sampling.temperature > 0) {
    for (double& value : shaped) value /= sampling.temperature;
  }
  return shaped;
}

// The most probable ids that together reach `share` of the whole weight. Sorts no more of the vocabulary than
// the answer needs, which is a small part of it: first the best 64, then ever more.
std::size_t nucleus(std::vector<std::int32_t>& ids, const std::vector<double>& weights, double share) {
  double all = 0;
  for (const std::int32_t id : ids) all += weights[static_cast<std::size_t>(id)];
  const auto before = [&weights](std::int32_t a, std::int32_t b) {
    const double x = weights[static_cast<std::size_t>(a)], y = weights[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  double sum = 0;
  std::size_t sorted = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i == sorted) {
      sorted = std::min(ids.size(), std::max<std::size_t>(64, 8 * sorted));
      std::partial_sort(ids.begin() + static_cast<std::ptrdiff_t>(i),
                        ids.begin() + static_cast<std::ptrdiff_t>(sorted), ids.end(), before);
    }
    if (i > 0 && sum >= share * all) return i;
    sum += weights[static_cast<std::size_t>(ids[i])];
  }
  return ids.size();
}

}  // namespace

void require_possible(const Sampling& s) {
  require_within("temperature", s.temperature, 0, 100, false);
  require_within("top_p", s.top_p, 0, 1, true);
  require_within("top_k", static_cast<double>(s.top_k), 0, 1e9, false);
  require_within("min_p", s.min_p, 0, 1, false);
  require_within("repetition_penalty", s.repetition_penalty, 0, 100, true);
}

void require_finite(double largest) {
  if (std::isfinite(largest)) return;
  throw Error({.what = "the model's logits are not finite numbers",
               .found = std::to_string(largest),
               .fix = "look whether the model's training diverged, or whether its weights are damaged"});
}

namespace {

// The first of the largest. A NaN counts as the largest, so that it is seen.
template <typename T>
std::int32_t most_probable(std::span<const T> logits) {
  const auto best =
      std::ranges::max_element(logits, [](T a, T b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
  require_finite(static_cast<double>(*best));
  return static_cast<std::int32_t>(best - logits.begin());
}

}  // namespace

std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& sampling,
                                  std::span<const std::int32_t> seen) {
  // What most calls ask for needs no copy of the vocabulary.
  if (sampling.temperature <= 0 && sampling.repetition_penalty == 1.0) return {{most_probable(logits), 1.0}};
  std::vector<double> weights = shaped(logits, sampling, seen);
  const std::int32_t best = most_probable(std::span<const double>(weights));
  const double highest = weights[static_cast<std::size_t>(best)];
  if (sampling.temperature <= 0) return {{best, 1.0}};
  double least = -std::numeric_limits<double>::infinity();
  if (sampling.top_k > 0 && sampling.top_k < static_cast<std::int64_t>(weights.size())) {
    std::vector<double> ranked = weights;
    const auto last = ranked.begin() + (sampling.top_k - 1);
    std::ranges::nth_element(ranked, last, std::greater<>());
    least = *last;
  }
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < least || weights[i] == -std::numeric_limits<double>::infinity()) continue;
    ids.push_back(static_cast<std::int32_t>(i));
    weights[i] = std::exp(weights[i] - highest);
  }
  if (sampling.top_p < 1) {
    ids.resize(nucleus(ids, weights, sampling.top_p));
    std::ranges::sort(ids);
  }
  // The most probable token has weight 1.
  if (sampling.min_p > 0) {
    std::erase_if(ids,
                  [&](std::int32_t id) { return weights[static_cast<std::size_t>(id)] < sampling.min_p; });
  }
  double sum = 0;
  for (const std::int32_t id : ids) sum += weights[static_cast<std::size_t>(id)];
  std::vector<Candidate> kept;
  kept.reserve(ids.size());
  for (const std::int32_t id : ids) kept.push_back({id, weights[static_cast<std::size_t>(id)] / sum});
  return kept;
}

std::int32_t choose(std::span<const float> logits, const Sampling& sampling, const Draw& draw,
                    std::span<const std::int32_t> seen) {
  const std::vector<Candidate> kept = candidates(logits, sampling, seen);
  if (kept.size() == 1) return kept.front().id;
  const std::uint64_t index = draw.position | static_cast<std::uint64_t>(draw.sample) << 32;
  const auto bits = philox(sampling.seed, RandomUse::sampling, index, static_cast<std::uint32_t>(draw.row));
  // 53 bits: tokens rarer than one in 2^24 are drawn, too.
  double left = static_cast<double>((static_cast<std::uint64_t>(bits[0]) << 32 | bits[1]) >> 11) * 0x1p-53;
  for (const Candidate& candidate : kept) {
    left -= candidate.probability;
    if (left < 0) return candidate.id;
  }
  // Rounding of the sum may leave a little.
  return std::ranges::max_element(kept, {}, &Candidate::probability)->id;
}

LogProbabilities::LogProbabilities(std::span<const float> logits, Rounding rounding)
    : logits_(logits), softmax_(runtime::LogSoftmax::of(logits)), rounding_(rounding) {}

double LogProbabilities::of(std::int32_t id) const {
  const auto logit = static_cast<double>(logits_[static_cast<std::size_t>(id)]);
  if (rounding_ == Rounding::of_training) return softmax_.log_probability(logit);
  return logit - (softmax_.highest + softmax_.log_sum);
}

std::vector<TokenScore> LogProbabilities::best(std::int64_t count) const {
  std::vector<std::int32_t> ids(logits_.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<std::ptrdiff_t>(count, std::ssize(ids));
  std::partial_sort(ids.begin(), end, ids.end(), [this](std::int32_t a, std::int32_t b) {
    const float x = logits_[static_cast<std::size_t>(a)], y = logits_[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<TokenScore> best;
  for (auto id = ids.begin(); id != end; ++id) best.push_back({*id, of(*id)});
  return best;
}

}  // namespace octet::generate
