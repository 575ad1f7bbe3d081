// Chooses a token from the largest logits of a row, or from the tokens that may be drawn.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "octet/generate/sampling.h"
#include "octet/ops/logits.h"

namespace octet::generate {

// Finds the tokens that may be drawn, from all logits of a row or from its largest logits.

/// Returns the index of the first largest value. `values` is not empty. A NaN counts as the largest, so
/// callers notice it.
template <typename T>
std::size_t most_probable(std::span<const T> values) {
  const auto best =
      std::ranges::max_element(values, [](T a, T b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
  return static_cast<std::size_t>(best - values.begin());
}

/// Returns a logit after the penalty for tokens that were seen.
double penalized(double logit, const Sampling& sampling);

/// The tokens of a vocabulary that are not listed.
struct Others {
  std::int64_t count = 0;
  /// Upper bound of their values; -inf: none of them can be drawn.
  double bound = -std::numeric_limits<double>::infinity();
  /// Sum of exp(value - highest) over the whole vocabulary, in its order; 0: unknown.
  double sum = 0;
};

/// Returns the tokens that may be drawn, given the values (logits after penalties and temperature) of the
/// listed tokens. Candidates are sorted by index, and their `id` is the index into `values`. Returns nullopt
/// if `others` could change the result; without others there is always a result. Without others, throws Error
/// if the largest value is not finite.
std::optional<std::vector<Candidate>> kept_of(std::vector<double> values, const Sampling& sampling,
                                              const Others& others = {});

/// Returns the number in [0, 1) that selects a token.
double random_number(const Sampling& sampling, const Draw& draw);

/// Returns the candidate that a draw selects. `kept` is not empty.
std::int32_t drawn_from(std::span<const Candidate> kept, const Sampling& sampling, const Draw& draw);

/// A row of logits from ops::listed_logits. The list is not copied and must outlive this object.
struct ListedRow {
  ops::RowOfLogits row;
  std::span<const ops::ListedLogit> listed;  ///< [row.count]
  std::int64_t vocabulary = 0;
};

/// The purpose of a listing.
struct ListingWish {
  bool helps = false;      ///< whether a listing can suffice
  double temperature = 0;  ///< of the sum over the row; 0: no sum
  double draw = -1;        ///< the number that selects a token of the whole row; -1: none
};
/// Returns the listing that a choice with these settings needs. `forbids`: whether ids are forbidden. `most`:
/// most logits that can be listed per row.
ListingWish listing_wish(const Sampling& sampling, const Draw& draw, bool forbids, std::int64_t vocabulary,
                         std::int64_t most);

/// Equal candidates() and choose() of the whole row, if the logits of `forbidden` ids are -inf. Return
/// nullopt if the whole row is needed, which includes rows with a largest logit that is not finite. If the
/// row has a sum or a draw, it was made with the temperature of `sampling` and with `draw`.
std::optional<std::vector<Candidate>> candidates(const ListedRow& row, const Sampling& sampling,
                                                 std::span<const std::int32_t> seen = {},
                                                 std::span<const std::int32_t> forbidden = {});
std::optional<std::int32_t> choose(const ListedRow& row, const Sampling& sampling, const Draw& draw,
                                   std::span<const std::int32_t> seen = {},
                                   std::span<const std::int32_t> forbidden = {});

/// Equal LogProbabilities::of() and best(), for a row with its normalizer. Return nullopt if the whole row is
/// needed.
std::optional<double> log_probability(const ListedRow& row, std::int32_t id);
std::optional<std::vector<TokenScore>> most_probable_tokens(const ListedRow& row, std::int64_t count);

}  // namespace octet::generate
