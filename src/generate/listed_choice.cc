#include "listed_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kept_tokens.h"

namespace octet::generate {
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
