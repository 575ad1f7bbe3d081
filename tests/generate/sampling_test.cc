#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "octet/base/error.h"
#include "octet/generate/sampling.h"

namespace octet::generate::sampling_test {
namespace {

std::map<std::int32_t, int> draw(const std::vector<float>& logits, const Sampling& sampling, int times) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < times; ++i) {
    ++counts[choose(logits, sampling, {.position = static_cast<std::uint64_t>(i)})];
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
      all.push_back(
          choose(logits, {.temperature = 1.0, .seed = seed}, {.row = sequence, .position = first + i}));
    }
    return all;
  };
  EXPECT_NE(tokens(9, 3, 0), tokens(8, 3, 0));
  EXPECT_NE(tokens(9, 3, 0), tokens(9, 2, 0));
  EXPECT_NE(tokens(9, 3, 0), tokens(9, 3, 1));
  int alike = 0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const Sampling sampling{.temperature = 1.0, .seed = 9};
    alike += choose(logits, sampling, {.row = 3, .sample = 0, .position = i}) ==
             choose(logits, sampling, {.row = 3, .sample = 1, .position = i});
  }
  EXPECT_LT(alike, 8) << "of 40 draws of one in 50";
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  const std::vector<float> logits{std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  EXPECT_EQ(draw(logits, {.temperature = 1.0, .top_k = 2}, 500).count(0), 0u);
  EXPECT_EQ(draw(logits, {.temperature = 1.0, .top_p = 0.5}, 500).size(), 1u);
  EXPECT_EQ(draw(logits, {.temperature = 1.0, .top_p = 0.7}, 500).size(), 2u);
}

std::vector<std::int32_t> ids_of(const std::vector<Candidate>& kept) {
  std::vector<std::int32_t> ids;
  for (const Candidate& c : kept) ids.push_back(c.id);
  return ids;
}

TEST(Sampling, WhatEqualsTheLastOfTopKIsKept) {
  EXPECT_EQ(ids_of(candidates(std::vector<float>{1, 5, 3, 3, 0}, {.temperature = 1, .top_k = 2})),
            (std::vector<std::int32_t>{1, 2, 3}));
}

TEST(Sampling, MinPIsAShareOfTheMostProbable) {
  const std::vector<float> logits{std::log(10.0f), std::log(2.0f), std::log(1.0f), std::log(0.5f)};
  EXPECT_EQ(ids_of(candidates(logits, {.temperature = 1, .min_p = 0.15})), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(candidates(logits, {.temperature = 1, .min_p = 0.09}).size(), 3u);
}

TEST(Sampling, WhatWasSeenIsLessProbableOnBothSidesOfZeroAndOnce) {
  const std::vector<float> logits{2, 1, -1, -1};
  const std::vector<std::int32_t> seen{0, 2, 0, 0};
  const auto kept = candidates(logits, {.temperature = 1, .repetition_penalty = 2}, seen);
  ASSERT_EQ(kept.size(), 4u);
  const double sum = 2 * std::exp(1.0) + std::exp(-2.0) + std::exp(-1.0);
  EXPECT_NEAR(kept[0].probability, std::exp(1.0) / sum, 1e-12);
  EXPECT_NEAR(kept[1].probability, std::exp(1.0) / sum, 1e-12);
  EXPECT_NEAR(kept[2].probability, std::exp(-2.0) / sum, 1e-12);
  EXPECT_EQ(choose(logits, {.temperature = 0, .repetition_penalty = 3}, {}, seen), 1);
}

// The search for the nucleus sorts growing parts of the vocabulary.
TEST(Sampling, ANucleusOfALargeVocabularyIsThatOfAFullSort) {
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 1000) / 250.0f;
  for (const double top_p : {0.001, 0.05, 0.3, 0.8, 0.99, 0.9999}) {
    std::vector<std::int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::int32_t i) { return logits[static_cast<std::size_t>(i)]; });
    double all = 0, sum = 0;
    for (const float l : logits) all += std::exp(static_cast<double>(l));
    std::vector<std::int32_t> expected;
    for (const std::int32_t id : order) {
      if (!expected.empty() && sum >= top_p * all) break;
      sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(id)]));
      expected.push_back(id);
    }
    std::ranges::sort(expected);
    EXPECT_EQ(ids_of(candidates(logits, {.temperature = 1, .top_p = top_p})), expected) << top_p;
  }
}

TEST(Sampling, SettingsOutsideTheirRangeAreRefused) {
  const double nan = std::nan("");
  for (const Sampling& wrong : {Sampling{.temperature = nan},
                                {.temperature = -1},
                                {.temperature = 101},
                                {.top_p = 0},
                                {.top_p = 1.1},
                                {.top_p = nan},
                                {.top_k = -1},
                                {.min_p = -0.1},
                                {.min_p = 2},
                                {.repetition_penalty = 0},
                                {.repetition_penalty = nan}}) {
    EXPECT_THROW(require_possible(wrong), Error);
  }
  EXPECT_NO_THROW(require_possible({}));
  EXPECT_THROW(choose(std::vector<float>{1, static_cast<float>(nan), 2}, {}, {}), Error);
  EXPECT_THROW(choose(std::vector<float>{1, INFINITY, 2}, {.temperature = 1}, {}), Error);
}

TEST(LogProbabilities, AreThoseOfTheSoftmaxBestFirst) {
  const std::vector<float> logits{std::log(1.0f), std::log(5.0f), std::log(2.0f), std::log(2.0f)};
  const LogProbabilities told(logits);
  EXPECT_NEAR(told.of(1), std::log(0.5), 1e-7);
  const auto best = told.best(3);
  ASSERT_EQ(best.size(), 3u);
  EXPECT_EQ(best[0].id, 1);
  EXPECT_EQ(best[1].id, 2) << "the lower of two";
  EXPECT_EQ(best[2].id, 3);
  EXPECT_NEAR(best[2].logprob, std::log(0.2), 1e-7);
  EXPECT_EQ(told.best(9).size(), 4u);
}

TEST(Sampling, TheSameSeedAndPlaceGiveTheSameToken) {
  const std::vector<float> logits(50, 0.0f);
  const Sampling sampling{.temperature = 1.0, .seed = 9};
  for (std::uint64_t position = 0; position < 20; ++position) {
    const Draw draw{.row = 3, .position = position};
    EXPECT_EQ(choose(logits, sampling, draw), choose(logits, sampling, draw));
  }
}

}  // namespace
}  // namespace octet::generate::sampling_test
