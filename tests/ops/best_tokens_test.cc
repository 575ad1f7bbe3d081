// The most probable token of rows of logits, and the sum for its log-probability.
#include "octet/ops/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "octet/device/cpu.h"

namespace octet::ops::best_tokens_test {
namespace {

std::vector<BestToken> best_of(std::vector<float> logits, std::int64_t rows, std::int64_t ld,
                               std::int64_t vocabulary, bool normalizers = true) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  std::vector<BestToken> out(static_cast<std::size_t>(rows), {.normalizer = -1, .logit = -1, .id = -1});
  best_tokens(*stream, {.logits = ConstMatrix(logits.data(), DType::f32, rows, vocabulary, ld),
                        .normalizers = normalizers,
                        .out = out.data()});
  stream->synchronize();
  return out;
}

TEST(BestTokens, FindsTheFirstOfTheLargestOfEachRow) {
  const auto best = best_of({1, 5, 5, 99, -2, -1, -7, 99, 3, 3, 3, 99}, 3, 4, 3);
  EXPECT_EQ(best[0].id, 1);
  EXPECT_EQ(best[0].logit, 5);
  EXPECT_EQ(best[1].id, 1);
  EXPECT_EQ(best[1].logit, -1);
  EXPECT_EQ(best[2].id, 0);
  EXPECT_NEAR(best[2].normalizer, 3 + std::log(3.0), 1e-15);
  EXPECT_EQ(best_of({7}, 1, 1, 1)[0].normalizer, 7);
}

TEST(BestTokens, SumsInDouble) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 9);
  for (const std::int64_t vocabulary : {33, 1000, 50257}) {
    std::vector<float> logits(static_cast<std::size_t>(2 * vocabulary));
    for (float& x : logits) x = normal(random);
    const auto best = best_of(logits, 2, vocabulary, vocabulary);
    for (std::int64_t row = 0; row < 2; ++row) {
      long double sum = 0;
      for (std::int64_t i = 0; i < vocabulary; ++i) {
        sum += std::exp(static_cast<long double>(logits[static_cast<std::size_t>(row * vocabulary + i)]));
      }
      EXPECT_NEAR(best[static_cast<std::size_t>(row)].normalizer, static_cast<double>(std::log(sum)), 1e-12);
    }
    EXPECT_EQ(best_of(logits, 2, vocabulary, vocabulary, false)[0].normalizer, 0);
  }
}

TEST(BestTokens, IdsThatAreNotKnownYetAreThoseOfTheRowsTheyName) {
  const std::vector<BestToken> best{{.id = 40}, {.id = 0}, {.id = 127999}};
  std::vector<std::int32_t> ids{5, -1, 0, -3, -2, -1, 128000, -3};
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "test"});
  fill_ids(*stream, {.best = best.data(), .ids = ids.data(), .count = std::ssize(ids) - 1});
  stream->synchronize();
  EXPECT_EQ(ids, (std::vector<std::int32_t>{5, 40, 0, 127999, 0, 40, 128000, -3}));
  fill_ids(*stream, {});
}

TEST(BestTokens, ANanCountsAsTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto best = best_of({1, nan, inf, nan, inf, 1, 2, inf, -inf, -inf, -inf, -inf}, 3, 4, 4);
  EXPECT_EQ(best[0].id, 1);
  EXPECT_TRUE(std::isnan(best[0].logit));
  EXPECT_EQ(best[1].id, 0);
  EXPECT_EQ(best[2].id, 0);
  EXPECT_EQ(best[2].logit, -inf);
}

}  // namespace
}  // namespace octet::ops::best_tokens_test
