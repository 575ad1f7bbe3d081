#include "octet/ops/cross_entropy.h"

#include <limits>

#include "ops/tensor.h"

namespace octet::ops::cross_entropy_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double capped(double x, double cap) {
  return cap > 0 ? cap * std::tanh(x / cap) : x;
}

struct Row {
  double loss = 0;
  std::vector<double> gradient;
  std::vector<double> size;  ///< magnitude of the gradient's terms
};

Row reference(const std::vector<double>& x, std::int64_t target, double cap) {
  Row row;
  row.gradient.resize(x.size());
  row.size.resize(x.size());
  if (target < 0) return row;
  double most = -kInfinity, sum = 0;
  for (const double v : x) most = std::max(most, capped(v, cap));
  for (const double v : x) sum += std::exp(capped(v, cap) - most);
  const auto at = static_cast<std::size_t>(target);
  row.loss = std::log(sum) + most - capped(x[at], cap);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double t = cap > 0 ? std::tanh(x[i] / cap) : 0;
    const double p = std::exp(capped(x[i], cap) - most) / sum;
    row.gradient[i] = (p - (i == at ? 1 : 0)) * (1 - t * t);
    row.size[i] = p + (i == at ? 1 : 0);
  }
  return row;
}

std::vector<double> row_of_doubles(const Tensor& t, std::int64_t r) {
  std::vector<double> x;
  for (std::int64_t c = 0; c < t.cols(); ++c) x.push_back(t.at(r, c));
  return x;
}

TEST(CrossEntropy, TheReferenceGradientIsTheSlopeOfTheReferenceLoss) {
  for (const double cap : {0.0, 2.0}) {
    std::vector<double> x = {0.3, -1.2, 2.5, 0.1, -3.0};
    const std::vector<double> gradient = reference(x, 1, cap).gradient;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double h = 1e-6, kept = x[i];
      x[i] = kept + h;
      const double up = reference(x, 1, cap).loss;
      x[i] = kept - h;
      EXPECT_NEAR(gradient[i], (up - reference(x, 1, cap).loss) / (2 * h), 1e-9);
      x[i] = kept;
    }
  }
}

void expect_rows(std::int64_t rows, std::int64_t vocabulary, DType dtype, double cap, double scale) {
  SCOPED_TRACE(testing::Message() << rows << "x" << vocabulary << " " << name_of(dtype) << " cap " << cap
                                  << " scale " << scale);
  const Tensor x = Tensor::random(dtype, rows, vocabulary, 1, scale);
  Tensor logits = x, untouched = x;
  std::vector<std::int32_t> targets;
  for (std::int64_t r = 0; r < rows; ++r) {
    targets.push_back(r % 5 == 3 ? -100 : static_cast<std::int32_t>(r * 31 % vocabulary));
  }
  std::vector<float> loss(static_cast<std::size_t>(rows), -1), loss_alone = loss;
  CpuStream stream;
  CrossEntropyArgs args{.logits = logits.matrix(), .targets = targets.data()};
  args.soft_cap = static_cast<float>(cap);
  args.row_loss = loss.data();
  cross_entropy(stream, args);
  args.logits = untouched.matrix();
  args.row_loss = loss_alone.data();
  args.gradient = false;
  cross_entropy(stream, args);
  EXPECT_TRUE(untouched == x);
  EXPECT_EQ(loss, loss_alone);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Row want = reference(row_of_doubles(x, r), targets[static_cast<std::size_t>(r)], cap);
    ASSERT_NEAR(static_cast<double>(loss[static_cast<std::size_t>(r)]), want.loss,
                2e-7 * (1 + want.loss + scale));
    for (std::int64_t c = 0; c < vocabulary; ++c) {
      const double g = want.gradient[static_cast<std::size_t>(c)];
      // e^(x - max) has the rounding error of x - max, 6e-8 of its magnitude. At the target, 1 is subtracted.
      // A cap subtracts its square from 1.
      const double slack = want.size[static_cast<std::size_t>(c)] * 3e-7 * (1 + scale);
      ASSERT_NEAR(logits.at(r, c), g, std::abs(g) * logits.rounding() + slack + 1e-9) << r << " " << c;
    }
  }
  EXPECT_TRUE(logits.margin_untouched());
}

TEST(CrossEntropy, LossAndGradientAreTheFloat64Ones) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t vocabulary : {1, 7, 257, 1031}) {
        expect_rows(rows, vocabulary, dtype, 0, 3);
        expect_rows(rows, vocabulary, dtype, 5, 4);
      }
    }
    expect_rows(3, 50257, dtype, 0, 8);
    expect_rows(3, 50257, dtype, 30, 20);
  }
}

TEST(CrossEntropy, HugeAndInfiniteLogitsAreTaken) {
  const double rows[][4] = {{3e38, -3e38, 0, 3e38},
                            {-kInfinity, 1, -kInfinity, 2},
                            {-3e38, -3e38, -3e38, -3e38},
                            {1e4, -1e4, 0, 9999}};
  const std::int32_t targets[] = {0, 1, 2, 3};
  for (const DType dtype : kComputeTypes) {
    Tensor x(dtype, 4, 4);
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < 4; ++c) x.set(r, c, rows[r][c]);
    }
    const Tensor before = x;
    std::vector<float> loss(4);
    CpuStream stream;
    cross_entropy(stream, {.logits = x.matrix(), .targets = targets, .row_loss = loss.data()});
    for (int r = 0; r < 4; ++r) {
      const Row want = reference(row_of_doubles(before, r), targets[r], 0);
      EXPECT_NEAR(static_cast<double>(loss[static_cast<std::size_t>(r)]), want.loss, 2e-7) << r;
      for (int c = 0; c < 4; ++c) {
        EXPECT_NEAR(x.at(r, c), want.gradient[static_cast<std::size_t>(c)], x.rounding()) << r << " " << c;
      }
    }
  }
}

TEST(CrossEntropy, AnImpossibleTargetLosesInfinitelyAndNaNShows) {
  Tensor x(DType::f32, 2, 3);
  for (int c = 0; c < 3; ++c) x.set(0, c, c == 1 ? -kInfinity : 0);
  for (int c = 0; c < 3; ++c) x.set(1, c, c == 1 ? std::nan("") : 0);
  const std::int32_t targets[] = {1, 0};
  std::vector<float> loss(2);
  CpuStream stream;
  cross_entropy(stream, {.logits = x.matrix(), .targets = targets, .row_loss = loss.data()});
  EXPECT_EQ(static_cast<double>(loss[0]), kInfinity);
  EXPECT_NEAR(x.at(0, 0), 0.5, 1e-7);
  EXPECT_EQ(x.at(0, 1), -1.0);
  EXPECT_TRUE(std::isnan(loss[1]));
  EXPECT_TRUE(std::isnan(x.at(1, 2)));
}

TEST(CrossEntropy, ATargetOutsideTheVocabularyIsRefused) {
  Tensor x = Tensor::zeros(DType::f32, 1, 3);
  const std::int32_t targets[] = {3};
  EXPECT_THROW(
      {
        CpuStream stream;
        cross_entropy(stream, {.logits = x.matrix(), .targets = targets});
        static_cast<Stream&>(stream).synchronize();
      },
      std::logic_error);
}

TEST(AddSum, AddsInDouble) {
  std::vector<float> values(5000, 0.1f);
  values[0] = 1e8f;
  double total = 0.5;
  CpuStream stream;
  add_sum(stream, values.data(), 5000, &total);
  EXPECT_NEAR(total, 0.5 + 1e8 + 4999 * static_cast<double>(0.1f), 2e-5);
  add_sum(stream, nullptr, 0, &total);
  EXPECT_NEAR(total, 0.5 + 1e8 + 4999 * static_cast<double>(0.1f), 2e-5);
}

TEST(SoftCap, IsTheScaledTangentOfEveryLogit) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : kRows) {
      for (const double cap : {0.5, 30.0, 1e4}) {
        const Tensor x = Tensor::random(dtype, rows, 257, 1, 40);
        Tensor y = x;
        CpuStream stream;
        soft_cap(stream, y.matrix(), static_cast<float>(cap));
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < 257; ++c) {
            const double want = cap * std::tanh(x.at(r, c) / cap);
            ASSERT_NEAR(y.at(r, c), want, std::abs(want) * y.rounding() + 4e-7 * cap) << x.at(r, c);
            ASSERT_LE(std::abs(y.at(r, c)), cap) << "never beyond the cap";
          }
        }
        EXPECT_TRUE(y.margin_untouched());
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::cross_entropy_test
