#include "octet/ops/expert_bias.h"

#include <numeric>

#include "ops/tensor.h"

namespace octet::ops::expert_bias_test {
namespace {

/// Rows of experts, some without any. The last rows belong to no expert.
struct Rows {
  std::vector<std::int32_t> begins{0};
  std::int64_t rows = 0;
  explicit Rows(const std::vector<std::int32_t>& counts, std::int64_t after = 0) {
    for (const std::int32_t count : counts) begins.push_back(begins.back() + count);
    rows = begins.back() + after;
  }
  std::int64_t count() const { return std::ssize(begins) - 1; }
  /// -1: none.
  std::int64_t expert(std::int64_t row) const {
    for (std::int64_t e = 0; e < count(); ++e)
      if (row < begins[static_cast<std::size_t>(e + 1)]) return e;
    return -1;
  }
};

const std::vector<Rows> kRowsOfExperts{Rows({3}), Rows({0, 5, 0, 130, 1, 0}, 2), Rows({0, 0}, 3),
                                       Rows({70, 64, 9})};

TEST(ExpertBias, IsAddedToTheRowsOfItsExpert) {
  for (const DType dtype : kComputeTypes) {
    for (const Rows& of : kRowsOfExperts) {
      for (const std::int64_t cols : {1, 33, 80, 1300}) {
        Tensor x = Tensor::random(dtype, of.rows, cols, 1);
        const Tensor before = x;
        const std::vector<float> bias = random_floats(of.count() * cols, 2);
        CpuStream stream;
        expert_bias(stream,
                    {.x = x.matrix(), .bias = bias.data(), .count = of.count(), .begins = of.begins.data()});
        for (std::int64_t r = 0; r < of.rows; ++r) {
          const std::int64_t e = of.expert(r);
          for (std::int64_t c = 0; c < cols; ++c) {
            const float add = e < 0 ? 0.0f : bias[static_cast<std::size_t>(e * cols + c)];
            ASSERT_EQ(x.at(r, c), x.kept(static_cast<float>(before.at(r, c)) + add)) << r << " " << c;
          }
        }
        EXPECT_TRUE(x.margin_untouched());
      }
    }
  }
}

TEST(ExpertBias, ItsGradientIsTheSumOfTheRowsOfItsExpert) {
  for (const DType dtype : kComputeTypes) {
    for (const Rows& of : kRowsOfExperts) {
      for (const std::int64_t cols : {1, 64, 200}) {
        const Tensor d = Tensor::random(dtype, of.rows, cols, 1);
        std::vector<float> sums = random_floats(of.count() * cols, 2);
        std::vector<double> want(sums.begin(), sums.end());
        for (std::int64_t r = 0; r < of.rows; ++r) {
          for (std::int64_t c = 0; c < cols && of.expert(r) >= 0; ++c)
            want[static_cast<std::size_t>(of.expert(r) * cols + c)] += d.at(r, c);
        }
        std::vector<float> again = sums;
        CpuStream stream, alone(1);
        expert_bias_backward(
            stream,
            {.d_y = d.matrix(), .count = of.count(), .begins = of.begins.data(), .d_bias = sums.data()});
        expert_bias_backward(
            alone,
            {.d_y = d.matrix(), .count = of.count(), .begins = of.begins.data(), .d_bias = again.data()});
        EXPECT_EQ(sums, again) << "threads change nothing";
        for (std::size_t i = 0; i < sums.size(); ++i)
          ASSERT_NEAR(static_cast<double>(sums[i]), want[i], 3e-5);
      }
    }
  }
}

TEST(ExpertBias, TheGradientOfAWeightIsTheBiasTimesTheGradientOfItsToken) {
  for (const DType dtype : kComputeTypes) {
    for (const Rows& of : kRowsOfExperts) {
      constexpr std::int64_t tokens = 11, cols = 77;
      const Tensor d = Tensor::random(dtype, tokens, cols, 1);
      const std::vector<float> bias = random_floats(of.count() * cols, 2);
      std::vector<std::int32_t> row_tokens;
      for (std::int64_t r = 0; r < of.rows; ++r)
        row_tokens.push_back(static_cast<std::int32_t>(r * 7 % tokens));
      std::vector<float> weights = random_floats(of.rows, 3);
      const std::vector<float> before = weights;
      CpuStream stream;
      expert_bias_weights(stream, {.d_tokens = d.matrix(),
                                   .row_tokens = row_tokens.data(),
                                   .rows = of.rows,
                                   .bias = bias.data(),
                                   .count = of.count(),
                                   .begins = of.begins.data(),
                                   .d_weights = weights.data()});
      for (std::int64_t r = 0; r < of.rows; ++r) {
        const auto at = static_cast<std::size_t>(r);
        double want = static_cast<double>(before[at]);
        for (std::int64_t c = 0; c < cols && of.expert(r) >= 0; ++c) {
          want += static_cast<double>(bias[static_cast<std::size_t>(of.expert(r) * cols + c)]) *
                  d.at(row_tokens[at], c);
        }
        ASSERT_NEAR(static_cast<double>(weights[at]), want, 1e-5) << r;
      }
    }
  }
}

TEST(ExpertBias, BordersThatDoNotFitTheRowsAreRefused) {
  CpuStream stream;
  Tensor x = Tensor::zeros(DType::f32, 4, 8);
  const std::vector<float> bias(16);
  for (const std::vector<std::int32_t>& begins : {std::vector<std::int32_t>{1, 2, 4}, {0, 3, 2}, {0, 3, 5}}) {
    expert_bias(stream, {.x = x.matrix(), .bias = bias.data(), .count = 2, .begins = begins.data()});
    EXPECT_THROW(static_cast<Stream&>(stream).synchronize(), std::logic_error);
  }
}

}  // namespace
}  // namespace octet::ops::expert_bias_test
