// Losses of judged answers against the formulas of the paper.
#include "octet/ops/judgement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "octet/ops/preference.h"
#include "ops/tensor.h"

namespace octet::ops::judgement_test {
namespace {

struct Judged {
  std::vector<std::int32_t> begins{0, 3, 4, 9, 11, 14}, desirable{1, 0, 0, 1, 1};
  std::vector<float> losses;
  std::vector<double> references{-4.0, -0.4, -6.5, -2.0, -3.0};
  Judged() {
    for (int r = 0; r < begins.back(); ++r) losses.push_back(0.3f + 0.17f * static_cast<float>(r % 7));
  }
  std::int64_t count() const { return static_cast<std::int64_t>(desirable.size()); }
};

struct Result {
  double loss = 0;
  std::vector<double> sums, figures;
  std::vector<float> factors;
};

Result run(const JudgementRule& rule, const Judged& judged, double point) {
  Result result;
  result.sums.resize(judged.desirable.size());
  result.figures.resize(kJudgementFigures);
  result.factors.resize(judged.losses.size());
  std::vector<double> slopes(judged.desirable.size());
  CpuStream stream;
  answer_sums(stream, {.row_loss = judged.losses.data(),
                       .answers = judged.begins.data(),
                       .count = judged.count(),
                       .pairs = false,
                       .out = result.sums.data()});
  judgement_loss(stream, {.rule = rule,
                          .count = judged.count(),
                          .answers = judged.begins.data(),
                          .desirable = judged.desirable.data(),
                          .sums = result.sums.data(),
                          .references = judged.references.data(),
                          .point = &point,
                          .slopes = slopes.data(),
                          .row_factors = result.factors.data(),
                          .loss_sum = &result.loss,
                          .figures = result.figures.data()});
  return result;
}

double formula(const JudgementRule& rule, const Judged& judged, double point) {
  double total = 0, good = 0, supervised = 0;
  for (std::size_t i = 0; i < judged.desirable.size(); ++i) {
    double answer = 0;
    const auto begin = static_cast<std::size_t>(judged.begins[i]);
    const auto end = static_cast<std::size_t>(judged.begins[i + 1]);
    for (std::size_t r = begin; r < end; ++r) answer -= static_cast<double>(judged.losses[r]);
    const double ratio = answer - judged.references[i];
    const bool desirable = judged.desirable[i] != 0;
    const double x = rule.beta * (desirable ? ratio - point : point - ratio);
    total += (desirable ? rule.desirable : rule.undesirable) * (1 - 1 / (1 + std::exp(-x)));
    if (desirable) good += 1, supervised -= answer / static_cast<double>(end - begin);
  }
  const auto count = static_cast<double>(judged.desirable.size());
  return total + rule.supervised * supervised * (count / good) * (count / good);
}

TEST(Judgement, HasTheLossAndTheSlopesOfTheFormula) {
  for (const JudgementRule& rule :
       {JudgementRule{}, JudgementRule{.beta = 0.5, .desirable = 1.5, .undesirable = 0.25},
        JudgementRule{.beta = 0.3, .supervised = 0.7}}) {
    for (const double point : {0.0, 0.8}) {
      Judged judged;
      const Result result = run(rule, judged, point);
      EXPECT_NEAR(result.loss, formula(rule, judged, point), 1e-12);
      for (std::size_t r = 0; r < judged.losses.size(); ++r) {
        constexpr float kStep = 1e-2f;
        Judged up = judged, down = judged;
        up.losses[r] += kStep, down.losses[r] -= kStep;
        const double width = static_cast<double>(up.losses[r]) - static_cast<double>(down.losses[r]);
        const double slope = (formula(rule, up, point) - formula(rule, down, point)) / width;
        EXPECT_NEAR(static_cast<double>(result.factors[r]), slope, 1e-5) << r;
      }
    }
  }
}

TEST(Judgement, CountsRewardsOfEachKind) {
  const Judged judged;
  const Result result = run({.beta = 0.2}, judged, 0.3);
  double good = 0, bad = 0;
  for (std::size_t i = 0; i < judged.desirable.size(); ++i)
    (judged.desirable[i] != 0 ? good : bad) += 0.2 * (result.sums[i] - judged.references[i]);
  EXPECT_NEAR(result.figures[0], good, 1e-12);
  EXPECT_NEAR(result.figures[1], bad, 1e-12);
  EXPECT_NEAR(result.figures[2], result.sums[0] + result.sums[3] + result.sums[4], 1e-12);
  EXPECT_NEAR(result.figures[3], result.sums[1] + result.sums[2], 1e-12);
  EXPECT_EQ(std::vector(result.figures.begin() + 4, result.figures.end()), (std::vector<double>{3, 2, 14}));
}

TEST(Judgement, WithoutDesirableAnswersHasNoTokenLoss) {
  Judged judged;
  judged.desirable.assign(judged.desirable.size(), 0);
  EXPECT_EQ(run({.supervised = 1}, judged, 0).loss, run({}, judged, 0).loss);
}

}  // namespace
}  // namespace octet::ops::judgement_test
