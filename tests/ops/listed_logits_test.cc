// The largest logits of rows against a naive search. Sums and draws against their definitions.
#include "octet/ops/logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "octet/device/cpu.h"

namespace octet::ops::listed_logits_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Listing {
  std::vector<RowOfLogits> rows;
  std::vector<ListedLogit> listed;
  std::int64_t most = 0;
  std::vector<ListedLogit> of(std::size_t row) const {
    const auto begin = listed.begin() + static_cast<std::ptrdiff_t>(row) * most;
    return {begin, begin + rows[row].count};
  }
};

struct Asked {
  std::int64_t most = 512;
  bool normalizers = true;
  std::vector<double> temperatures, draws;
  int threads = 1;
};

/// Lists rows of `vocabulary` logits with stride `ld`.
Listing list(const std::vector<float>& logits, std::int64_t rows, std::int64_t vocabulary, std::int64_t ld,
             Asked asked = {}) {
  const auto device = make_cpu_device({.threads = asked.threads});
  const auto stream = device->make_stream({.name = "test"});
  const auto count = static_cast<std::size_t>(rows);
  asked.temperatures.resize(count, 0.0);
  asked.draws.resize(count, -1.0);
  Listing out{.rows = std::vector<RowOfLogits>(count, {-7, -7, -7, -7, -7, -7, -7, -7}),
              .listed = std::vector<ListedLogit>(count * static_cast<std::size_t>(asked.most), {-7, -7}),
              .most = asked.most};
  listed_logits(*stream, {.logits = ConstMatrix(logits.data(), DType::f32, rows, vocabulary, ld),
                          .normalizers = asked.normalizers,
                          .temperatures = asked.temperatures.data(),
                          .draws = asked.draws.data(),
                          .most = asked.most,
                          .rows = out.rows.data(),
                          .listed = out.listed.data()});
  stream->synchronize();
  return out;
}

Listing list(const std::vector<float>& row, Asked asked = {}) {
  const auto vocabulary = std::ssize(row);
  return list(row, 1, vocabulary, vocabulary, std::move(asked));
}

/// Returns the logits of all steps before the first step that does not fit.
std::vector<ListedLogit> naive(const float* row, std::int64_t vocabulary, std::int64_t most, float* bound) {
  const float highest = *std::max_element(row, row + vocabulary);
  const auto step = [&](float x) {
    return std::min(2047.0, std::floor(static_cast<double>((highest - x) * 32.0f)));
  };
  std::vector<double> steps;
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    if (row[i] != -kInf) steps.push_back(step(row[i]));
  }
  std::ranges::sort(steps);
  const double end = std::ssize(steps) <= most ? 2048 : steps[static_cast<std::size_t>(most)];
  std::vector<ListedLogit> listed;
  *bound = -kInf;
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    if (row[i] != -kInf && step(row[i]) < end) {
      listed.push_back({row[i], static_cast<std::int32_t>(i)});
    } else {
      *bound = std::max(*bound, row[i]);
    }
  }
  return listed;
}

void expect_as_naive(const Listing& listing, std::size_t r, const float* row, std::int64_t vocabulary) {
  float bound = 0;
  const std::vector<ListedLogit> expected = naive(row, vocabulary, listing.most, &bound);
  const std::vector<ListedLogit> found = listing.of(r);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].id, expected[i].id);
    ASSERT_EQ(found[i].logit, expected[i].logit);
  }
  EXPECT_EQ(listing.rows[r].bound, bound);
  const float* best = std::max_element(row, row + vocabulary);
  EXPECT_EQ(listing.rows[r].best, best - row);
  EXPECT_EQ(listing.rows[r].highest, *best);
}

std::vector<float> random_rows(std::int64_t rows, std::int64_t ld, double deviation, bool rounded) {
  std::mt19937 random(static_cast<std::uint32_t>(17 + rows + ld));
  std::normal_distribution<double> normal(1, deviation);
  std::vector<float> logits(static_cast<std::size_t>(rows * ld));
  for (float& x : logits) {
    const double v = normal(random);
    x = static_cast<float>(rounded ? std::round(v * 4) / 4 : v);  // many are equal
  }
  return logits;
}

TEST(ListedLogits, AreTheLargestOfEachRowAsFarAsTheyFit) {
  for (const std::int64_t vocabulary : {1, 3, 63, 64, 65, 1026, 32002}) {
    for (const double deviation : {0.01, 2.0, 12.0}) {
      for (const bool rounded : {false, true}) {
        const std::int64_t rows = 3, ld = vocabulary + 5;
        std::vector<float> logits = random_rows(rows, ld, deviation, rounded);
        // The values after the end of a row are no logits.
        for (std::int64_t r = 0; r < rows; ++r) logits[static_cast<std::size_t>(r * ld + vocabulary)] = kInf;
        for (const std::int64_t most : {1, 7, 512}) {
          const Listing listing = list(logits, rows, vocabulary, ld, {.most = most, .threads = 2});
          for (std::size_t r = 0; r < 3; ++r) {
            SCOPED_TRACE(testing::Message() << vocabulary << " tokens, room for " << most << ", row " << r);
            expect_as_naive(listing, r, logits.data() + static_cast<std::int64_t>(r) * ld, vocabulary);
          }
        }
      }
    }
  }
}

TEST(ListedLogits, WhatIsBehindTheListedStays) {
  const Listing listing = list({0, 9, 3, 5}, {.most = 4});
  EXPECT_EQ(listing.rows[0].count, 4);
  const Listing partly = list({0, 9, 3, 5, 9}, {.most = 4});
  EXPECT_EQ(partly.rows[0].count, 4) << "two, then one, then one";
  EXPECT_EQ(partly.rows[0].bound, 0);
  const Listing few = list({9, 9, 9, 5, 5, 0}, {.most = 4});
  EXPECT_EQ(few.rows[0].count, 3);
  EXPECT_EQ(few.rows[0].bound, 5);
  EXPECT_EQ(few.listed[3].id, -7);
}

TEST(ListedLogits, OfEqualOnesAllAreListedOrNone) {
  for (const std::int64_t count : {6, 7, 8}) {
    const Listing listing = list(std::vector<float>(static_cast<std::size_t>(count), -3.5f), {.most = 7});
    EXPECT_EQ(listing.rows[0].count, count <= 7 ? count : 0);
    EXPECT_EQ(listing.rows[0].bound, count <= 7 ? -kInf : -3.5f);
    EXPECT_EQ(listing.rows[0].best, 0);
  }
}

TEST(ListedLogits, TheLastStepHasAllThatIsFar) {
  const std::vector<float> row{3e38f, -3e38f, 0, -kInf, 1e38f};
  const Listing all = list(row, {.most = 4});
  EXPECT_EQ(all.rows[0].count, 4) << "-inf is never listed";
  EXPECT_EQ(all.rows[0].bound, -kInf);
  const Listing one = list(row, {.most = 3});
  EXPECT_EQ(one.rows[0].count, 1);
  EXPECT_EQ(one.rows[0].bound, 1e38f);
  // Logits at least 2,047 steps below the largest are all in the last step.
  EXPECT_EQ(list({0, -63.95f, -63.98f, -80}, {.most = 3}).rows[0].count, 2);
  EXPECT_EQ(list({0, -63.95f, -63.96f, -80}, {.most = 3}).rows[0].count, 3);
}

TEST(ListedLogits, OfARowWithoutALargestNothingIsListed) {
  const Asked asked{.temperatures = {1.0}, .draws = {0.5}};
  const auto expect_nothing = [&](const std::vector<float>& row, std::int32_t best) {
    const Listing listing = list(row, asked);
    const RowOfLogits& r = listing.rows[0];
    EXPECT_EQ(r.count, 0);
    EXPECT_EQ(r.drawn, -1);
    EXPECT_EQ(r.sum, 0);
    EXPECT_EQ(r.best, best);
    EXPECT_EQ(listing.listed[0].id, -7);
    return r;
  };
  EXPECT_TRUE(std::isnan(expect_nothing({1, kNan, kInf, kNan}, 1).highest));
  std::vector<float> late(100, 1.0f);
  late[77] = kNan;
  EXPECT_TRUE(std::isnan(expect_nothing(late, 77).bound));
  late[99] = kNan, late[77] = 1;
  EXPECT_TRUE(std::isnan(expect_nothing(late, 99).bound)) << "behind the last full piece";
  EXPECT_EQ(expect_nothing({1, 2, kInf, 3, kInf}, 2).highest, kInf);
  EXPECT_EQ(expect_nothing({-kInf, -kInf}, 0).bound, -kInf);
}

TEST(ListedLogits, NormalizersHaveTheBitsOfBestTokens) {
  const std::int64_t vocabulary = 5003;
  const std::vector<float> logits = random_rows(4, vocabulary, 5, false);
  std::vector<BestToken> best(4);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  best_tokens(*stream, {.logits = ConstMatrix(logits.data(), DType::f32, 4, vocabulary, vocabulary),
                        .normalizers = true,
                        .out = best.data()});
  stream->synchronize();
  const Listing with = list(logits, 4, vocabulary, vocabulary);
  const Listing without = list(logits, 4, vocabulary, vocabulary, {.normalizers = false});
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(with.rows[r].normalizer, best[r].normalizer);
    EXPECT_EQ(without.rows[r].normalizer, 0);
    EXPECT_EQ(with.rows[r].best, best[r].id);
    EXPECT_EQ(with.rows[r].highest, best[r].logit);
  }
}

TEST(ListedLogits, SumsAreThoseOfTheTemperatureOfTheirRow) {
  const std::int64_t vocabulary = 1500;
  const std::vector<float> logits = random_rows(3, vocabulary, 4, false);
  const Asked asked{.temperatures = {0.7, 0.0, 2.0}};
  const Listing listing = list(logits, 3, vocabulary, vocabulary, asked);
  for (std::size_t r = 0; r < 3; ++r) {
    const float* row = logits.data() + r * static_cast<std::size_t>(vocabulary);
    const double t = asked.temperatures[r];
    double sum = 0;
    for (std::int64_t i = 0; i < vocabulary && t > 0; ++i)
      sum += std::exp(static_cast<double>(row[i]) / t - static_cast<double>(listing.rows[r].highest) / t);
    EXPECT_EQ(listing.rows[r].sum, sum);
    EXPECT_EQ(listing.rows[r].drawn, -1);
    EXPECT_EQ(listing.rows[r].drawn_logit, 0);
  }
}

TEST(ListedLogits, ADrawIsWhereTheProbabilitiesReachIt) {
  // The probabilities 1/2, 1/4, 1/8 and 1/8, in a different order, and an impossible token.
  const float ln2 = std::log(2.0f);
  const std::vector<float> row{-kInf, 0, 2 * ln2, 0, ln2};
  const auto drawn = [&](double draw, double temperature = 1.0) {
    return list(row, {.temperatures = {temperature}, .draws = {draw}}).rows[0];
  };
  EXPECT_EQ(drawn(0.0).drawn, 1);
  EXPECT_EQ(drawn(0.124).drawn, 1);
  EXPECT_EQ(drawn(0.126).drawn, 2);
  EXPECT_EQ(drawn(0.624).drawn, 2);
  EXPECT_EQ(drawn(0.626).drawn, 3);
  EXPECT_EQ(drawn(0.751).drawn, 4);
  EXPECT_EQ(drawn(0.751).drawn_logit, ln2);
  EXPECT_EQ(drawn(1.0).drawn, 2) << "what roundings leave is for the most probable one";
  EXPECT_EQ(drawn(-1.0).drawn, -1);
  EXPECT_EQ(drawn(0.5, 0.0).drawn, -1);
  // At half the temperature, token 1 has 1/22 and token 2 has 16/22 of the probability.
  EXPECT_EQ(drawn(0.044, 0.5).drawn, 1);
  EXPECT_EQ(drawn(0.047, 0.5).drawn, 2);
  EXPECT_EQ(drawn(0.77, 0.5).drawn, 2);
  EXPECT_EQ(drawn(0.775, 0.5).drawn, 3);
}

TEST(ListedLogits, WhatIsUnlistedIsDrawnAsWell) {
  std::vector<float> row(4000, 0.0f);
  row[3000] = 1;
  const RowOfLogits told = list(row, {.most = 7, .temperatures = {1.0}, .draws = {0.5}}).rows[0];
  EXPECT_EQ(told.count, 1);
  EXPECT_EQ(told.drawn, 2000);
}

TEST(ListedLogits, RefusesWhatItHasNoRoomFor) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  const std::vector<float> logits{1, 2};
  const double none = 0;
  RowOfLogits row;
  ListedLogit listed;
  const ListedLogitsArgs good{.logits = ConstMatrix(logits.data(), DType::f32, 1, 2, 2),
                              .temperatures = &none,
                              .draws = &none,
                              .most = 1,
                              .rows = &row,
                              .listed = &listed};
  EXPECT_NO_THROW(listed_logits(*stream, good));
  stream->synchronize();
  const auto expect_refused = [&](auto change) {
    ListedLogitsArgs bad = good;
    change(bad);
    EXPECT_THROW(listed_logits(*stream, bad), std::logic_error);
  };
  expect_refused([](auto& a) { a.logits.dtype = DType::bf16; });
  expect_refused([](auto& a) { a.logits.cols = 0; });
  expect_refused([](auto& a) { a.most = 0; });
  expect_refused([](auto& a) { a.temperatures = nullptr; });
  expect_refused([](auto& a) { a.draws = nullptr; });
  expect_refused([](auto& a) { a.rows = nullptr; });
  expect_refused([](auto& a) { a.listed = nullptr; });
  ListedLogitsArgs nothing = good;
  nothing.logits.rows = 0;
  EXPECT_NO_THROW(listed_logits(*stream, nothing));
}

}  // namespace
}  // namespace octet::ops::listed_logits_test
