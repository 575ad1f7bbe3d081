#include "cuda/gemm/autotune_score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace octet::ops::cuda::gemm_autotune_score_test {
namespace {

/// Returns the candidates' indices, fastest first. Equal candidates keep their order.
std::vector<std::size_t> by_score(const std::vector<Round>& rounds) {
  const std::vector<double> score = scores(rounds);
  std::vector<std::size_t> order(score.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return score[x] < score[y]; });
  return order;
}

TEST(AutotuneScore, AClockThatChangesBetweenRoundsDecidesNothing) {
  const std::vector<float> takes = {1.02f, 1.00f, 1.05f, 1.01f};
  std::mt19937 random(3);
  std::vector<Round> rounds;
  for (int r = 0; r < 8; ++r) {
    const float clock = std::uniform_real_distribution<float>(0.7f, 1.4f)(random);
    Round round;
    for (const float time : takes) {
      round.push_back(time * clock * std::uniform_real_distribution<float>(0.998f, 1.002f)(random));
    }
    rounds.push_back(round);
  }
  EXPECT_EQ(by_score(rounds), (std::vector<std::size_t>{1, 3, 0, 2}));
}

TEST(AutotuneScore, SingleTurnsThatTakeTwiceAsLongDecideNothing) {
  std::vector<Round> rounds(7, Round{1.0f, 1.1f, 1.2f});
  rounds[1][0] = 2.0f;
  rounds[4][0] = 2.2f;
  rounds[5][2] = 0.5f;
  EXPECT_EQ(by_score(rounds), (std::vector<std::size_t>{0, 1, 2}));
}

TEST(AutotuneScore, WhatCouldNotRunComesLastAndEqualOnesKeepTheirOrder) {
  constexpr float never = std::numeric_limits<float>::infinity();
  const std::vector<Round> rounds = {{never, 1.0f, 1.0f}, {2.0f, 1.5f, 1.5f}, {never, 1.0f, 1.0f}};
  EXPECT_EQ(by_score(rounds), (std::vector<std::size_t>{1, 2, 0}));
  const std::vector<Round> none_ran = {{never, never}};
  EXPECT_EQ(by_score(none_ran), (std::vector<std::size_t>{0, 1}));
  EXPECT_TRUE(by_score(std::vector<Round>{}).empty());
}

TEST(AutotuneScore, AnEvenNumberOfRoundsTakesTheMiddleOfTheTwoInTheMiddle) {
  const std::vector<Round> rounds = {{1, 3}, {3, 1}};
  EXPECT_DOUBLE_EQ(scores(rounds)[0], 1.0);
  EXPECT_DOUBLE_EQ(scores(rounds)[1], 1.0);
}

}  // namespace
}  // namespace octet::ops::cuda::gemm_autotune_score_test
