#include "octet/ops/preference.h"

#include <numeric>

#include "ops/tensor.h"

namespace octet::ops::preference_test {
namespace {

/// Pairs of answers of these lengths.
struct Pairs {
  std::vector<std::int32_t> begins{0};
  std::vector<float> losses;
  std::vector<double> references;
  explicit Pairs(const std::vector<std::int32_t>& lengths) {
    for (const std::int32_t length : lengths) begins.push_back(begins.back() + length);
    losses = random_floats(begins.back(), 6);
    for (float& x : losses) x = std::abs(x) + 0.01f;
    for (std::size_t i = 0; i < lengths.size(); ++i)
      references.push_back(-0.7 * static_cast<double>(lengths[i]) + 0.3 * static_cast<double>(i % 3));
  }
  std::int64_t count() const { return static_cast<std::int64_t>(references.size()) / 2; }
};

struct Result {
  double loss = 0;
  std::vector<double> sums, figures;
  std::vector<float> factors;
};

Result run(const PreferenceRule& rule, const Pairs& pairs) {
  Result result;
  result.sums.resize(pairs.references.size());
  result.figures.resize(kPreferenceFigures);
  result.factors.resize(pairs.losses.size());
  std::vector<double> slopes(pairs.references.size());
  CpuStream stream;
  answer_sums(stream, {.row_loss = pairs.losses.data(),
                       .answers = pairs.begins.data(),
                       .count = 2 * pairs.count(),
                       .beyond = rule.beyond,
                       .out = result.sums.data()});
  preference_loss(stream, {.rule = rule,
                           .pairs = pairs.count(),
                           .answers = pairs.begins.data(),
                           .sums = result.sums.data(),
                           .references = rule.reads_references() ? pairs.references.data() : nullptr,
                           .slopes = slopes.data(),
                           .row_factors = result.factors.data(),
                           .loss_sum = &result.loss,
                           .figures = result.figures.data()});
  return result;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The loss of one pair of log-probabilities, from the formulas of the papers.
double formula(const PreferenceRule& rule, double c, double r, double of_c, double of_r) {
  const double h = (c - of_c) - (r - of_r);
  switch (rule.kind) {
    case PreferenceKind::sigmoid:
      return -(1 - rule.smoothing) * std::log(sigmoid(rule.beta * h)) -
             rule.smoothing * std::log(sigmoid(-rule.beta * h));
    case PreferenceKind::hinge:
      return std::max(0.0, 1 - rule.beta * h);
    case PreferenceKind::ipo:
      return (h - 1 / (2 * rule.beta)) * (h - 1 / (2 * rule.beta));
    case PreferenceKind::orpo: {
      const double odds = std::exp(c) / (1 - std::exp(c)) / (std::exp(r) / (1 - std::exp(r)));
      return -c - rule.beta * std::log(sigmoid(std::log(odds)));
    }
    case PreferenceKind::simpo:
      return -std::log(sigmoid(rule.beta * (c - r) - rule.margin));
    case PreferenceKind::bradley_terry:
      return -std::log(sigmoid(c - r));
    case PreferenceKind::kto_pair:
      break;
  }
  return 0;
}

const std::vector<PreferenceRule>& rules() {
  static const std::vector<PreferenceRule> all = {
      {},
      {.beta = 0.5, .smoothing = 0.2},
      {.kind = PreferenceKind::hinge, .beta = 0.3},
      {.kind = PreferenceKind::ipo, .beta = 0.4},
      {.kind = PreferenceKind::orpo, .beta = 0.2},
      {.kind = PreferenceKind::simpo, .beta = 2, .margin = 0.5},
      {.kind = PreferenceKind::bradley_terry, .beta = 1},
      {.supervised = 0.7},
      {.kind = PreferenceKind::ipo, .beta = 0.4, .supervised = 0.7},
      {.beyond = 0.25},
      {.kind = PreferenceKind::simpo, .beta = 2, .margin = 0.5, .supervised = 0.1, .beyond = 0.5},
  };
  return all;
}

TEST(Preference, LossesAreTheFormulas) {
  const Pairs pairs({3, 5, 6, 2, 1, 1});
  for (const PreferenceRule& rule : rules()) {
    double want = 0;
    for (std::size_t p = 0; p < 3; ++p) {
      double sums[2], supervised = 0;
      const auto length = [&](std::size_t a) { return pairs.begins[a + 1] - pairs.begins[a]; };
      for (std::size_t side = 0; side < 2; ++side) {
        const std::size_t a = 2 * p + side;
        const auto begin = pairs.losses.begin() + pairs.begins[a];
        const auto shared = std::min(length(2 * p), length(2 * p + 1));
        sums[side] = -std::accumulate(begin, begin + shared, 0.0) -
                     rule.beyond * std::accumulate(begin + shared, begin + length(a), 0.0);
        if (side == 0) supervised = -sums[0] / length(a);
        if (rule.averages()) sums[side] /= length(a);
      }
      const double c = rule.averages() ? length(2 * p) : 1, r = rule.averages() ? length(2 * p + 1) : 1;
      want += formula(rule, sums[0], sums[1], pairs.references[2 * p] / c, pairs.references[2 * p + 1] / r) +
              rule.supervised * supervised;
    }
    EXPECT_NEAR(run(rule, pairs).loss, want, 1e-9 * std::abs(want));
  }
}

TEST(Preference, RowFactorsAreTheSlopesOfTheLoss) {
  Pairs pairs({3, 5, 6, 2, 4, 4});
  for (const PreferenceRule& rule : rules()) {
    const Result result = run(rule, pairs);
    for (std::size_t row = 0; row < pairs.losses.size(); ++row) {
      const float kept = pairs.losses[row];
      constexpr float h = 0x1p-10f;
      pairs.losses[row] = kept + h;
      const double up = run(rule, pairs).loss;
      pairs.losses[row] = kept - h;
      const double down = run(rule, pairs).loss;
      pairs.losses[row] = kept;
      EXPECT_NEAR(static_cast<double>(result.factors[row]), (up - down) / (2 * static_cast<double>(h)), 2e-4)
          << static_cast<int>(rule.kind) << " row " << row;
    }
  }
}

TEST(Preference, WithoutADifferenceTheLossIsLogTwoAndTheMarginZero) {
  Pairs pairs({4, 7, 2, 3});
  pairs.references = run({}, pairs).sums;
  const Result result = run({}, pairs);
  EXPECT_EQ(result.loss, 2 * std::log(2.0));
  EXPECT_EQ(result.figures[0], 0.0);
  EXPECT_EQ(result.figures[1], 0.0);
  EXPECT_EQ(result.figures[2], 0.0);
}

TEST(Preference, KtoTakesTheMeansOfTheMicroBatchAsConstants) {
  const PreferenceRule rule{.kind = PreferenceKind::kto_pair, .beta = 0.5};
  Pairs pairs({3, 5, 6, 2});
  pairs.references = {-9, -9, -1, -9};
  const Result result = run(rule, pairs);
  std::vector<double> gain;
  for (std::size_t a = 0; a < 4; ++a) gain.push_back(result.sums[a] - pairs.references[a]);
  const double z_c = std::max(0.0, (gain[0] + gain[2]) / 2), z_r = std::max(0.0, (gain[1] + gain[3]) / 2);
  double want = 0;
  for (std::size_t p = 0; p < 2; ++p) {
    const double up = sigmoid(0.5 * (gain[2 * p] - z_r)), down = sigmoid(0.5 * (z_c - gain[2 * p + 1]));
    want += ((1 - up) + (1 - down)) / 2;
    const auto of_chosen = static_cast<std::size_t>(pairs.begins[2 * p]);
    const auto of_rejected = static_cast<std::size_t>(pairs.begins[2 * p + 1]);
    EXPECT_NEAR(static_cast<double>(result.factors[of_chosen]), 0.25 * up * (1 - up), 1e-7);
    EXPECT_NEAR(static_cast<double>(result.factors[of_rejected]), -0.25 * down * (1 - down), 1e-7);
  }
  EXPECT_GT(z_r, 0.0);
  EXPECT_NEAR(result.loss, want, 1e-12);
}

TEST(Preference, FiguresAreSumsOverPairs) {
  const Pairs pairs({3, 5, 6, 2});
  const Result result = run({.beta = 0.5}, pairs);
  double up = 0, down = 0, accurate = 0;
  for (std::size_t p = 0; p < 2; ++p) {
    const double c = 0.5 * (result.sums[2 * p] - pairs.references[2 * p]);
    const double r = 0.5 * (result.sums[2 * p + 1] - pairs.references[2 * p + 1]);
    up += c, down += r, accurate += c > r ? 1 : 0;
  }
  const auto at = [&](PreferenceFigure figure) { return result.figures[static_cast<std::size_t>(figure)]; };
  EXPECT_EQ(at(PreferenceFigure::reward_chosen), up);
  EXPECT_EQ(at(PreferenceFigure::reward_rejected), down);
  EXPECT_EQ(at(PreferenceFigure::accurate), accurate);
  EXPECT_EQ(at(PreferenceFigure::chosen), result.sums[0] + result.sums[2]);
  EXPECT_EQ(at(PreferenceFigure::rejected), result.sums[1] + result.sums[3]);
  EXPECT_EQ(at(PreferenceFigure::labels), 16.0);
  EXPECT_EQ(at(PreferenceFigure::pairs), 2.0);
}

}  // namespace
}  // namespace octet::ops::preference_test
