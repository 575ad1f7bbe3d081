// Finds the tokens that may be drawn, from all logits of a row or from its largest logits.
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

namespace octet::generate {

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

}  // namespace octet::generate
