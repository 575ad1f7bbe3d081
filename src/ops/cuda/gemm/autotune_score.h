// Selects the fastest of candidates that were timed in rounds. Part of every build, so that it is tested
// without a GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace octet::ops::cuda {

/// Times of all candidates in one round, one turn each; infinite if a candidate failed.
using Round = std::vector<float>;

/// Returns, for each candidate, the median over rounds of its time relative to the mean of the round. At its
/// power limit, a GPU changes its clock by several percent within tenths of a second, and for some tenths by
/// a half. So times are only compared within a round, and a single round does not decide. Empty if there are
/// no rounds.
inline std::vector<double> scores(std::span<const Round> rounds) {
  if (rounds.empty()) return {};
  const std::size_t candidates = rounds.front().size();
  std::vector<std::vector<double>> shares(candidates);
  for (const Round& round : rounds) {
    double sum = 0;
    std::size_t ran = 0;
    for (const float time : round) {
      if (!std::isfinite(time)) continue;
      sum += static_cast<double>(time);
      ++ran;
    }
    const double mean = ran > 0 && sum > 0 ? sum / static_cast<double>(ran) : 1.0;
    for (std::size_t c = 0; c < candidates; ++c) shares[c].push_back(static_cast<double>(round[c]) / mean);
  }
  std::vector<double> result;
  for (std::vector<double>& of_one : shares) {
    std::sort(of_one.begin(), of_one.end());
    const std::size_t half = of_one.size() / 2;
    const double upper = of_one[half];
    result.push_back(of_one.size() % 2 == 1 ? upper : (of_one[half - 1] + upper) / 2);
  }
  return result;
}

// Checks that two algorithms gave the same result, except for rounding. Part of every build, so that it is
// tested without a GPU.

/// Compares rows of `cols` numbers: ‖got - want‖ <= most * ‖want‖ for each row. Rows with a non-finite `want`
/// are ignored. `most` is well above the effect of another summation order (a thousandth in bf16 and FP8),
/// and below the effect of one wrong tile in a row.
inline bool rows_agree(std::span<const float> want, std::span<const float> got, std::size_t cols,
                       double most = 0.04) {
  if (want.size() != got.size()) return false;
  for (std::size_t row = 0; row < want.size(); row += cols) {
    double difference = 0, size = 0;
    for (std::size_t i = row; i < row + cols && i < want.size(); ++i) {
      const auto w = static_cast<double>(want[i]), d = static_cast<double>(got[i]) - w;
      difference += d * d;
      size += w * w;
    }
    if (std::isfinite(size) && !(difference <= most * most * size)) return false;
  }
  return true;
}

}  // namespace octet::ops::cuda
