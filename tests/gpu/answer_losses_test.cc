// Losses of pairs and of judged answers on the GPU, against the CPU side.
#include <string>
#include <vector>

#include "gpu/sides.h"
#include "octet/ops/judgement.h"
#include "octet/ops/preference.h"
#include "octet/ops/score_rows.h"

namespace octet::ops::answer_losses_test {
namespace {

/// First rows of answers: short and long ones, and one longer than a block of threads.
const std::vector<std::int32_t> kBegins{0, 3, 4, 9, 11, 1211, 1218, 1219, 1500};
constexpr std::int64_t kAnswers = 8;
const std::vector<double> kReferences{-4.0, -0.4, -6.5, -2.0, -900.0, -3.0, -0.7, -180.0};

std::vector<float> row_losses() {
  std::vector<float> losses;
  for (int r = 0; r < kBegins.back(); ++r) losses.push_back(0.3f + 0.17f * static_cast<float>(r % 7));
  return losses;
}

/// Adds numbers in double as an output in fp32.
void out(Side& s, const std::string& name, const double* from, std::int64_t count) {
  std::vector<double> host(static_cast<std::size_t>(count));
  Stream& stream = s;
  s.device().copy_to_host(stream, host.data(), from, host.size() * sizeof(double));
  stream.synchronize();
  s.out(name, s.put(std::vector<float>(host.begin(), host.end())), count, DType::f32);
}

double* sums_of(Side& s, bool pairs, double beyond) {
  double* const sums = s.put(std::vector<double>(kAnswers));
  answer_sums(s, {.row_loss = s.put(row_losses()),
                  .answers = s.put(kBegins),
                  .count = kAnswers,
                  .pairs = pairs,
                  .beyond = beyond,
                  .out = sums});
  out(s, "sums", sums, kAnswers);
  return sums;
}

TEST(GpuAnswerLosses, PairsHaveTheLossOfTheCpu) {
  using enum PreferenceKind;
  for (const PreferenceRule& rule :
       {PreferenceRule{.smoothing = 0.1, .supervised = 0.3, .beyond = 0.5}, PreferenceRule{.kind = hinge},
        PreferenceRule{.kind = ipo}, PreferenceRule{.kind = kto_pair}, PreferenceRule{.kind = orpo},
        PreferenceRule{.kind = simpo, .beta = 2, .margin = 0.5}, PreferenceRule{.kind = bradley_terry}}) {
    SCOPED_TRACE("rule " + std::to_string(static_cast<int>(rule.kind)));
    both(
        [&](Side& s) {
          float* const factors = s.put(std::vector<float>(static_cast<std::size_t>(kBegins.back())));
          double* const loss = s.put(std::vector<double>{1.5});
          double* const figures = s.put(std::vector<double>(kPreferenceFigures, 0.25));
          preference_loss(s, {.rule = rule,
                              .pairs = kAnswers / 2,
                              .answers = s.put(kBegins),
                              .sums = sums_of(s, true, rule.beyond),
                              .references = s.put(kReferences),
                              .slopes = s.put(std::vector<double>(kAnswers)),
                              .row_factors = factors,
                              .loss_sum = loss,
                              .figures = figures});
          out(s, "loss", loss, 1);
          out(s, "figures", figures, kPreferenceFigures);
          s.out("factors", factors, kBegins.back(), DType::f32);
        },
        {.relative = 1e-6});
  }
}

TEST(GpuAnswerLosses, JudgedAnswersHaveTheLossOfTheCpu) {
  for (const JudgementRule& rule :
       {JudgementRule{},
        JudgementRule{.beta = 0.3, .desirable = 1.5, .undesirable = 0.25, .supervised = 0.7}}) {
    both(
        [&](Side& s) {
          float* const factors = s.put(std::vector<float>(static_cast<std::size_t>(kBegins.back())));
          double* const loss = s.put(std::vector<double>{1.5});
          double* const figures = s.put(std::vector<double>(kJudgementFigures, 0.25));
          judgement_loss(s, {.rule = rule,
                             .count = kAnswers,
                             .answers = s.put(kBegins),
                             .desirable = s.put(std::vector<std::int32_t>{1, 0, 0, 1, 1, 0, 1, 0}),
                             .sums = sums_of(s, false, 1),
                             .references = s.put(kReferences),
                             .point = s.put(std::vector<double>{0.8}),
                             .slopes = s.put(std::vector<double>(kAnswers)),
                             .row_factors = factors,
                             .loss_sum = loss,
                             .figures = figures});
          out(s, "loss", loss, 1);
          out(s, "figures", figures, kJudgementFigures);
          s.out("factors", factors, kBegins.back(), DType::f32);
        },
        {.relative = 1e-6});
  }
}

TEST(GpuAnswerLosses, ScoresHaveTheBitsOfTheCpu) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : {1, 7, 300}) {
      both(
          [&](Side& s) {
            const Matrix scores = s.put(Tensor::random(dtype, rows, 1, 1, 1, 0));
            float* const losses = s.put(std::vector<float>(static_cast<std::size_t>(rows)));
            std::vector<float> factors;
            for (int r = 0; r < rows; ++r) factors.push_back(0.1f * static_cast<float>(r % 11) - 0.4f);
            score_rows(s, {.scores = scores, .row_loss = losses});
            s.out("losses", losses, rows, DType::f32);
            score_rows(s, {.scores = scores, .row_factors = s.put(factors)});
            s.out("gradients", scores);
          },
          {});
    }
  }
}

}  // namespace
}  // namespace octet::ops::answer_losses_test
