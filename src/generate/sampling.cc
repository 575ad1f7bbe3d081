#include "octet/generate/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>

#include "listed_choice.h"
#include "octet/base/error.h"

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
               .fix = std::string("give another ") + name,
               .code = ExitCode::usage});
}

// Returns the logits as doubles, after the penalty for seen tokens and the temperature.
std::vector<double> shaped(std::span<const float> logits, const Sampling& sampling,
                           std::span<const std::int32_t> seen) {
  std::vector<double> shaped(logits.begin(), logits.end());
  if (sampling.repetition_penalty != 1.0) {
    std::vector<bool> done(logits.size());
    for (const std::int32_t id : seen) {
      const auto i = static_cast<std::size_t>(id);
      if (done[i]) continue;
      done[i] = true;
      shaped[i] = penalized(shaped[i], sampling);
    }
  }
  if (sampling.temperature > 0) {
    for (double& value : shaped) value /= sampling.temperature;
  }
  return shaped;
}

}  // namespace

void require_possible(const Sampling& s) {
  require_within("temperature", s.temperature, 0, kHottest, false);
  require_within("top_p", s.top_p, 0, 1, true);
  require_within("top_k", static_cast<double>(s.top_k), 0, 1e9, false);
  require_within("min_p", s.min_p, 0, 1, false);
  require_within("repetition_penalty", s.repetition_penalty, 0, 100, true);
}

void require_finite(double largest) {
  if (std::isfinite(largest)) return;
  throw NotFinite({.what = "the model's logits are not finite numbers",
                   .found = std::to_string(largest),
                   .fix = "check whether the training diverged, or whether the weights are damaged",
                   .code = ExitCode::usage});
}

std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& sampling,
                                  std::span<const std::int32_t> seen) {
  // The most common case needs no copy of the logits.
  if (sampling.temperature <= 0 && sampling.repetition_penalty == 1.0) {
    const std::size_t best = most_probable(logits);
    require_finite(static_cast<double>(logits[best]));
    return {{static_cast<std::int32_t>(best), 1.0}};
  }
  return kept_of(shaped(logits, sampling, seen), sampling).value();
}

std::int32_t choose(std::span<const float> logits, const Sampling& sampling, const Draw& draw,
                    std::span<const std::int32_t> seen) {
  return drawn_from(candidates(logits, sampling, seen), sampling, draw);
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
