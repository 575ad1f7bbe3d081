// Which of the most probable tokens may be drawn, from the logits of a whole row or from the largest of them.
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

/// Place of the first of the largest, of one or more. A NaN counts as the largest, so that it is seen.
template <typename T>
std::size_t most_probable(std::span<const T> values) {
  const auto best =
      std::ranges::max_element(values, [](T a, T b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
  return static_cast<std::size_t>(best - values.begin());
}

/// A logit behind the penalty for tokens that were seen.
double penalized(double logit, const Sampling& sampling);

/// The tokens of a vocabulary that are not among those that are looked at.
struct Others {
  std::int64_t count = 0;
  /// None of their values is above; -inf: none of them can be drawn.
  double bound = -std::numeric_limits<double>::infinity();
  /// Sum of exp(value - highest) over the whole vocabulary, in its order; 0: not known.
  double sum = 0;
};

/// What may be drawn of tokens with these values (logits behind penalties and temperature), of which those
/// looked at have a place each; by ascending place, which takes the id's place in the candidates. None where
/// the others might change anything of it: without others there is always an answer. Throws Error where the
/// largest value is no finite number, if there are no others.
std::optional<std::vector<Candidate>> kept_of(std::vector<double> values, const Sampling& sampling,
                                              const Others& others = {});

/// The number in [0, 1) that a token is drawn by.
double random_number(const Sampling& sampling, const Draw& draw);

/// The candidate that a draw takes, of one or more.
std::int32_t drawn_from(std::span<const Candidate> kept, const Sampling& sampling, const Draw& draw);

}  // namespace octet::generate
