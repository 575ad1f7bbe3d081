#include "listed_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "octet/base/random.h"

namespace octet::generate {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// Whether a weight is certainly above `others`. The margin covers the rounding of exp().
bool surely_above(double weight, double others) {
  return weight > others * (1 + 1e-12);
}

// Returns how many of the most probable tokens reach `share` of `all` together, or nullopt if all of them do
// not. Sorts only as much as needed, usually a small part of the vocabulary: 64 tokens, then 8 times as many.
std::optional<std::size_t> nucleus(std::vector<std::int32_t>& ids, const std::vector<double>& weights,
                                   double share, double all) {
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
  if (sum >= share * all) return ids.size();
  return std::nullopt;
}

// Returns the smallest value that top_k keeps; -inf: all are kept. Returns nullopt if `others` might be among
// the kept tokens.
std::optional<double> least_of_top_k(const std::vector<double>& values, std::int64_t top_k,
                                     const Others& others) {
  if (top_k >= std::ssize(values)) {
    if (others.bound == kNone) return kNone;
    return std::nullopt;
  }
  std::vector<double> ranked = values;
  const auto last = ranked.begin() + (top_k - 1);
  std::ranges::nth_element(ranked, last, std::greater<>());
  if (others.count > 0 && others.bound != kNone && *last <= others.bound) return std::nullopt;
  return *last;
}

}  // namespace

double penalized(double logit, const Sampling& sampling) {
  return logit > 0 ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
}

std::optional<std::vector<Candidate>> kept_of(std::vector<double> values, const Sampling& sampling,
                                              const Others& others) {
  if (values.empty()) return std::nullopt;
  const std::size_t best = most_probable(std::span<const double>(values));
  const double highest = values[best];
  if (others.count > 0 && !(highest > others.bound)) return std::nullopt;
  require_finite(highest);
  if (sampling.temperature <= 0) return std::vector<Candidate>{{static_cast<std::int32_t>(best), 1.0}};
  // Whether unlisted tokens may still be kept.
  bool open = others.count > 0 && others.bound != kNone;
  double least = kNone;
  if (sampling.top_k > 0 && sampling.top_k < std::ssize(values) + others.count) {
    const std::optional<double> last = least_of_top_k(values, sampling.top_k, others);
    if (!last) return std::nullopt;
    least = *last;
    open = false;
  }
  std::vector<double>& weights = values;
  std::vector<std::int32_t> ids;
  double all = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < least || weights[i] == kNone) continue;
    ids.push_back(static_cast<std::int32_t>(i));
    weights[i] = std::exp(weights[i] - highest);
    all += weights[i];
  }
  const double of_others = open ? std::exp(others.bound - highest) : 0;
  const auto weight = [&](std::int32_t id) { return weights[static_cast<std::size_t>(id)]; };
  // The most probable token has weight 1, and min_p may remove tokens that top_p keeps.
  const bool none_by_min_p = surely_above(sampling.min_p, of_others);
  if (sampling.top_p < 1) {
    if (open) all = others.sum;
    if (open && all <= 0) return std::nullopt;
    const std::optional<std::size_t> kept = nucleus(ids, weights, sampling.top_p, all);
    ids.resize(kept.value_or(ids.size()));
    if (kept && surely_above(weight(ids.back()), of_others)) open = false;
    std::ranges::sort(ids);
  }
  if (open && !none_by_min_p) return std::nullopt;
  if (sampling.min_p > 0) {
    std::erase_if(ids, [&](std::int32_t id) { return weight(id) < sampling.min_p; });
  }
  double sum = 0;
  for (const std::int32_t id : ids) sum += weight(id);
  std::vector<Candidate> kept;
  kept.reserve(ids.size());
  for (const std::int32_t id : ids) kept.push_back({id, weight(id) / sum});
  return kept;
}

double random_number(const Sampling& sampling, const Draw& draw) {
  const std::uint64_t index = draw.position | static_cast<std::uint64_t>(draw.sample) << 32;
  const auto bits = philox(sampling.seed, RandomUse::sampling, index, static_cast<std::uint32_t>(draw.row));
  // 53 bits, so that tokens with a probability below 2^-24 can be drawn.
  return static_cast<double>((static_cast<std::uint64_t>(bits[0]) << 32 | bits[1]) >> 11) * 0x1p-53;
}

std::int32_t drawn_from(std::span<const Candidate> kept, const Sampling& sampling, const Draw& draw) {
  if (kept.size() == 1) return kept.front().id;
  double left = random_number(sampling, draw);
  for (const Candidate& candidate : kept) {
    left -= candidate.probability;
    if (left < 0) return candidate.id;
  }
  // Rounding of the sum may leave a remainder.
  return std::ranges::max_element(kept, {}, &Candidate::probability)->id;
}

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

bool changes(const Sampling& sampling, bool forbids) {
  return forbids || sampling.repetition_penalty != 1.0;
}

/// Returns the listed logits as shaped() would return them for the whole row.
std::vector<double> shaped(const ListedRow& row, const Sampling& sampling, std::span<const std::int32_t> seen,
                           std::span<const std::int32_t> forbidden) {
  std::vector<bool> penalised;
  if (sampling.repetition_penalty != 1.0) {
    penalised.resize(static_cast<std::size_t>(row.vocabulary));
    for (const std::int32_t id : seen) penalised[static_cast<std::size_t>(id)] = true;
  }
  std::vector<double> values;
  values.reserve(row.listed.size());
  for (const auto& [logit, id] : row.listed) {
    const bool allowed = std::ranges::find(forbidden, id) == forbidden.end();
    double value = static_cast<double>(allowed ? logit : kForbidden);
    if (!penalised.empty() && penalised[static_cast<std::size_t>(id)]) value = penalized(value, sampling);
    values.push_back(sampling.temperature > 0 ? value / sampling.temperature : value);
  }
  return values;
}

}  // namespace

ListingWish listing_wish(const Sampling& s, const Draw& draw, bool forbids, std::int64_t vocabulary,
                         std::int64_t most) {
  // A penalty below 1 raises logits that may not be listed.
  if (s.repetition_penalty < 1) return {};
  if (s.temperature <= 0) return {.helps = true};
  if (s.top_k > 0 && s.top_k < vocabulary) return {.helps = s.top_k <= most};
  // The sum of a row is computed from unmodified logits.
  if (changes(s, forbids)) return {.helps = s.min_p > 0 && s.top_p >= 1};
  if (s.top_p < 1) return {.helps = true, .temperature = s.temperature};
  if (s.min_p > 0) return {.helps = true};
  return {.helps = true, .temperature = s.temperature, .draw = random_number(s, draw)};
}

std::optional<std::vector<Candidate>> candidates(const ListedRow& row, const Sampling& sampling,
                                                 std::span<const std::int32_t> seen,
                                                 std::span<const std::int32_t> forbidden) {
  if (!std::isfinite(row.row.highest)) return std::nullopt;
  const bool changed = changes(sampling, !forbidden.empty());
  if (sampling.temperature <= 0 && !changed) return std::vector<Candidate>{{row.row.best, 1.0}};
  if (sampling.repetition_penalty < 1 && row.row.bound != kForbidden) return std::nullopt;
  const auto bound = static_cast<double>(row.row.bound);
  std::optional<std::vector<Candidate>> kept =
      kept_of(shaped(row, sampling, seen, forbidden), sampling,
              {.count = row.vocabulary - std::ssize(row.listed),
               .bound = sampling.temperature > 0 ? bound / sampling.temperature : bound,
               .sum = changed ? 0 : row.row.sum});
  if (!kept) return std::nullopt;
  for (Candidate& candidate : *kept) candidate.id = row.listed[static_cast<std::size_t>(candidate.id)].id;
  return kept;
}

std::optional<std::int32_t> choose(const ListedRow& row, const Sampling& sampling, const Draw& draw,
                                   std::span<const std::int32_t> seen,
                                   std::span<const std::int32_t> forbidden) {
  if (row.row.drawn >= 0) return row.row.drawn;
  const std::optional<std::vector<Candidate>> kept = candidates(row, sampling, seen, forbidden);
  if (!kept) return std::nullopt;
  return drawn_from(*kept, sampling, draw);
}

std::optional<double> log_probability(const ListedRow& row, std::int32_t id) {
  const auto of = [&](float logit) { return static_cast<double>(logit) - row.row.normalizer; };
  if (id == row.row.best) return of(row.row.highest);
  if (id == row.row.drawn) return of(row.row.drawn_logit);
  const auto found = std::ranges::lower_bound(row.listed, id, {}, &ops::ListedLogit::id);
  if (found == row.listed.end() || found->id != id) return std::nullopt;
  return of(found->logit);
}

std::optional<std::vector<TokenScore>> most_probable_tokens(const ListedRow& row, std::int64_t count) {
  count = std::min(count, row.vocabulary);
  if (count > std::ssize(row.listed)) return std::nullopt;
  std::vector<ops::ListedLogit> ranked(row.listed.begin(), row.listed.end());
  const auto end = ranked.begin() + count;
  std::partial_sort(ranked.begin(), end, ranked.end(), [](const auto& a, const auto& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  std::vector<TokenScore> best;
  for (auto at = ranked.begin(); at != end; ++at)
    best.push_back({at->id, static_cast<double>(at->logit) - row.row.normalizer});
  return best;
}

}  // namespace octet::generate
