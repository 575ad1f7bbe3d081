#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "octet/generate/decoder.h"

namespace octet::generate {
namespace {

std::map<std::int32_t, int> draw(const std::vector<float>& logits, const Sampling& sampling, int times) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < times; ++i) {
    ++counts[choose(logits.data(), static_cast<std::int64_t>(logits.size()), sampling, 0,
                    static_cast<std::uint64_t>(i))];
  }
  return counts;
}

TEST(Sampling, TemperatureZeroTakesTheLargest) {
  EXPECT_EQ(draw({0, 3, 1, 2}, {.temperature = 0}, 5), (std::map<std::int32_t, int>{{1, 5}}));
}

TEST(Sampling, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits{std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  auto counts = draw(logits, {.temperature = 1.0}, 8000);
  EXPECT_NEAR(counts[0], 1000, 150);
  EXPECT_NEAR(counts[1], 2000, 200);
  EXPECT_NEAR(counts[2], 5000, 250);
}

TEST(Sampling, TheTemperatureDividesTheLogits) {
  // Odds of 1 : 4 become 1 : 16 at half the temperature and 1 : 2 at twice.
  const std::vector<float> logits{std::log(1.0f), std::log(4.0f)};
  auto cold = draw(logits, {.temperature = 0.5}, 8000);
  auto hot = draw(logits, {.temperature = 2.0}, 8000);
  EXPECT_NEAR(cold[0], 8000 / 17.0, 110);  // five standard deviations
  EXPECT_NEAR(hot[0], 8000 / 3.0, 210);
}

TEST(Sampling, AnotherSeedSequenceOrPlaceGivesOtherTokens) {
  const std::vector<float> logits(50, 0.0f);
  const auto tokens = [&](std::uint64_t seed, std::uint64_t sequence, std::uint64_t first) {
    std::vector<std::int32_t> all;
    for (std::uint64_t i = 0; i < 20; ++i) {
      all.push_back(choose(logits.data(), 50, {.temperature = 1.0, .seed = seed}, sequence, first + i));
    }
    return all;
  };
  EXPECT_NE(tokens(9, 3, 0), tokens(8, 3, 0));
  EXPECT_NE(tokens(9, 3, 0), tokens(9, 2, 0));
  EXPECT_NE(tokens(9, 3, 0), tokens(9, 3, 1));
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  const std::vector<float> logits{std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  EXPECT_EQ(draw(logits, {.temperature = 1.0, .top_k = 2}, 500).count(0), 0u);
  EXPECT_EQ(draw(logits, {.temperature = 1.0, .top_p = 0.5}, 500).size(), 1u);
  EXPECT_EQ(draw(logits, {.temperature = 1.0, .top_p = 0.7}, 500).size(), 2u);
}

TEST(Sampling, TheSameSeedAndPlaceGiveTheSameToken) {
  const std::vector<float> logits(50, 0.0f);
  const Sampling sampling{.temperature = 1.0, .seed = 9};
  for (std::uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(choose(logits.data(), 50, sampling, 3, position),
              choose(logits.data(), 50, sampling, 3, position));
  }
}

}  // namespace
}  // namespace octet::generate
