// Losses of rows that are not the plain cross-entropy: smoothing, factors, hits, entropies.
#include <algorithm>

#include "octet/ops/cross_entropy.h"
#include "ops/tensor.h"

namespace octet::ops::token_losses_test {
namespace {

struct How {
  double cap = 0, smoothing = 0;
  bool by_probability = false;
  std::vector<float> factors = {};
  bool factors_loss = false;
};

std::vector<double> capped_row(const Tensor& t, std::int64_t r, double cap) {
  std::vector<double> x;
  for (std::int64_t c = 0; c < t.cols(); ++c)
    x.push_back(cap > 0 ? cap * std::tanh(t.at(r, c) / cap) : t.at(r, c));
  return x;
}

double log_sum(const std::vector<double>& x) {
  const double most = *std::ranges::max_element(x);
  double sum = 0;
  for (const double v : x) sum += std::exp(v - most);
  return most + std::log(sum);
}

/// Expects the losses and gradients of float64 for rows 0, 1, …, of which every fifth has no target.
void expect_rows(DType dtype, std::int64_t vocabulary, const How& how) {
  SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << vocabulary << " cap " << how.cap
                                  << " smoothing " << how.smoothing << " p " << how.by_probability);
  constexpr std::int64_t rows = 7;
  const Tensor before = Tensor::random(dtype, rows, vocabulary, 5, 2);
  Tensor x = before;
  std::vector<std::int32_t> targets;
  for (std::int64_t r = 0; r < rows; ++r)
    targets.push_back(r % 5 == 3 ? -100 : static_cast<std::int32_t>(r * 31 % vocabulary));
  std::vector<float> loss(rows, -1), hits(rows, -1);
  CpuStream stream;
  cross_entropy(stream, {.logits = x.matrix(),
                         .targets = targets.data(),
                         .soft_cap = static_cast<float>(how.cap),
                         .row_loss = loss.data(),
                         .smoothing = static_cast<float>(how.smoothing),
                         .by_probability = how.by_probability,
                         .row_factors = how.factors.empty() ? nullptr : how.factors.data(),
                         .factors_loss = how.factors_loss,
                         .row_hits = hits.data()});
  const double e = static_cast<double>(static_cast<float>(how.smoothing));
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (targets[i] < 0) {
      EXPECT_EQ(loss[i], 0.0f);
      EXPECT_EQ(hits[i], 0.0f);
      for (std::int64_t c = 0; c < vocabulary; ++c) ASSERT_EQ(x.at(r, c), 0.0);
      continue;
    }
    const std::vector<double> row = capped_row(before, r, how.cap);
    const double all = log_sum(row), of_target = all - row[static_cast<std::size_t>(targets[i])];
    double mean = 0;
    for (const double v : row) mean += (all - v) / static_cast<double>(vocabulary);
    double factor = how.by_probability ? std::exp(-of_target) : 1;
    double want = (1 - e) * of_target + e * mean;
    const double given = how.factors.empty() ? 1 : static_cast<double>(how.factors[i]);
    want *= factor * (how.factors_loss ? given : 1);
    factor *= given;
    ASSERT_NEAR(static_cast<double>(loss[i]), want, 2e-6 * (1 + std::abs(want)));
    EXPECT_EQ(hits[i] != 0.0f, std::ranges::max_element(row) - row.begin() == targets[i]);
    for (std::int64_t c = 0; c < vocabulary; ++c) {
      const auto at = static_cast<std::size_t>(c);
      const double t = how.cap > 0 ? row[at] / how.cap : 0;
      const double p = std::exp(row[at] - all);
      const double g =
          (p - e / static_cast<double>(vocabulary) - (c == targets[i] ? 1 - e : 0)) * factor * (1 - t * t);
      ASSERT_NEAR(x.at(r, c), g, std::abs(g) * x.rounding() + 2e-6 * std::abs(factor)) << r << " " << c;
    }
  }
  EXPECT_TRUE(x.margin_untouched());
}

TEST(TokenLosses, LossAndGradientAreTheFloat64Ones) {
  const std::vector<float> factors = {0.5f, -2.0f, 0.0f, 1.0f, 3.0f, 0.25f, 1.5f};
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t vocabulary : {3, 257, 1031}) {
      for (const double cap : {0.0, 5.0}) {
        expect_rows(dtype, vocabulary, {.cap = cap, .smoothing = 0.1});
        expect_rows(dtype, vocabulary, {.cap = cap, .by_probability = true});
        expect_rows(dtype, vocabulary, {.cap = cap, .factors = factors});
        expect_rows(dtype, vocabulary, {.cap = cap, .factors = factors, .factors_loss = true});
        expect_rows(dtype, vocabulary,
                    {.cap = cap, .smoothing = 0.3, .by_probability = true, .factors = factors});
      }
    }
  }
}

TEST(TokenLosses, ARowThatOnlyCountsHitsKeepsTheBitsOfThePlainLoss) {
  for (const DType dtype : kComputeTypes) {
    Tensor plain = Tensor::random(dtype, 4, 515, 9, 3), counted = plain;
    const std::int32_t targets[] = {0, 7, 300, 514};
    std::vector<float> loss(4), other(4), hits(4);
    CpuStream stream;
    cross_entropy(stream, {.logits = plain.matrix(), .targets = targets, .row_loss = loss.data()});
    cross_entropy(
        stream,
        {.logits = counted.matrix(), .targets = targets, .row_loss = other.data(), .row_hits = hits.data()});
    EXPECT_EQ(loss, other);
    EXPECT_TRUE(plain == counted);
  }
}

TEST(TokenLosses, OfEqualLogitsTheFirstIsTheMostProbable) {
  Tensor x = Tensor::zeros(DType::bf16, 3, 5);
  for (int r = 0; r < 3; ++r) x.set(r, 2, 1), x.set(r, 4, 1);
  const std::int32_t targets[] = {2, 4, 0};
  std::vector<float> hits(3);
  CpuStream stream;
  cross_entropy(stream, {.logits = x.matrix(), .targets = targets, .row_hits = hits.data()});
  EXPECT_EQ(hits, (std::vector<float>{1, 0, 0}));
}

TEST(RowEntropy, IsTheEntropyOfTheTwentyLargestLogits) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t vocabulary : {1, 7, 20, 21, 1031}) {
      for (const double cap : {0.0, 4.0}) {
        for (const float power : {1.0f, 0.5f, 0.0f}) {
          const Tensor x = Tensor::random(dtype, 3, vocabulary, 11, 3);
          std::vector<float> out(3, -1);
          CpuStream stream;
          row_entropy(
              stream,
              {.logits = x.matrix(), .soft_cap = static_cast<float>(cap), .power = power, .out = out.data()});
          for (std::int64_t r = 0; r < 3; ++r) {
            std::vector<double> row = capped_row(x, r, cap);
            std::ranges::sort(row, std::greater<>());
            row.resize(std::min<std::size_t>(row.size(), 20));
            const double all = log_sum(row);
            double entropy = 0;
            for (const double v : row) entropy -= std::exp(v - all) * (v - all);
            const double want = std::pow(std::max(0.0, entropy) / 3, static_cast<double>(power));
            EXPECT_NEAR(static_cast<double>(out[static_cast<std::size_t>(r)]), want, 1e-6);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::token_losses_test
