// The experts of tokens, and sums of weighted rows, against references in double.
#include "octet/ops/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "octet/device/cpu.h"

namespace octet::ops::routing_test {
namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

Routed routed(const std::vector<float>& logits, std::int64_t tokens, std::int64_t ld, std::int64_t experts,
              std::int64_t taken, bool normalised = true) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  Routed out{std::vector<std::int32_t>(index(tokens * taken), -1),
             std::vector<float>(index(tokens * taken), -1)};
  route(*stream, {.logits = ConstMatrix(logits.data(), DType::f32, tokens, experts, ld),
                  .taken = taken,
                  .normalised = normalised,
                  .experts = out.experts.data(),
                  .weights = out.weights.data()});
  stream->synchronize();
  return out;
}

TEST(Route, TakesTheMostProbableWithTheirShares) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  for (const std::int64_t experts : {1, 6, 33, 128, 1024}) {
    for (const std::int64_t taken : {std::int64_t{1}, std::min<std::int64_t>(experts, 8), experts}) {
      constexpr std::int64_t tokens = 37;
      const std::int64_t ld = experts + 3;
      std::vector<float> logits(index(tokens * ld), 1e9f);
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t e = 0; e < experts; ++e) logits[index(t * ld + e)] = normal(random);
      for (const bool normalised : {false, true}) {
        const Routed found = routed(logits, tokens, ld, experts, taken, normalised);
        for (std::int64_t t = 0; t < tokens; ++t) {
          const float* const x = logits.data() + t * ld;
          std::vector<std::int32_t> order(index(experts));
          std::iota(order.begin(), order.end(), 0);
          std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return x[a] > x[b]; });
          double all = 0, of_taken = 0;
          for (std::int64_t e = 0; e < experts; ++e) all += std::exp(static_cast<double>(x[e]));
          for (std::int64_t j = 0; j < taken; ++j)
            of_taken += std::exp(static_cast<double>(x[order[index(j)]]));
          for (std::int64_t j = 0; j < taken; ++j) {
            EXPECT_EQ(found.experts[index(t * taken + j)], order[index(j)]);
            const double share =
                std::exp(static_cast<double>(x[order[index(j)]])) / (normalised ? of_taken : all);
            EXPECT_NEAR(found.weights[index(t * taken + j)], share, 1e-5 * share);
          }
        }
      }
    }
  }
}

TEST(Route, TheLowerNumberOfEqualsAndNansFirst) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(routed({2, 5, 5, 2, 5}, 1, 5, 5, 4).experts, (std::vector<std::int32_t>{1, 2, 4, 0}));
  // A NaN makes the whole row NaN. Its experts are still valid and different.
  const Routed broken = routed({1, nan, 3, 0, -inf, -inf, -inf, -inf}, 2, 4, 4, 3);
  for (const std::int64_t t : {0, 1}) {
    std::vector<std::int32_t> own(broken.experts.begin() + 3 * t, broken.experts.begin() + 3 * t + 3);
    EXPECT_EQ(own, (std::vector<std::int32_t>{0, 1, 2}));
    EXPECT_TRUE(std::isnan(broken.weights[index(3 * t)]));
  }
  // Large logits do not overflow.
  const Routed large = routed({300, 299, -300}, 1, 3, 3, 2);
  EXPECT_NEAR(large.weights[0], 1 / (1 + std::exp(-1.0)), 1e-6);
}

TEST(Route, WhatCannotBeIsRefused) {
  const std::vector<float> logits(2000);
  EXPECT_THROW(routed(logits, 1, 4, 4, 5), std::logic_error);
  EXPECT_THROW(routed(logits, 1, 4, 4, 0), std::logic_error);
  EXPECT_THROW(routed(logits, 1, 1025, 1025, 1), std::logic_error);
}

std::vector<float> drawn(std::mt19937& random, std::int64_t count) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(index(count));
  for (float& value : values) value = normal(random);
  return values;
}
template <typename T>
double value_of(T x) {
  return static_cast<double>(static_cast<float>(x));
}

template <typename T>
void expect_sums(DType dtype, double bound) {
  std::mt19937 random(11);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  for (const std::int64_t cols : {1, 7, 48, 1031}) {
    for (const std::int64_t taken : {1, 2, 8}) {
      constexpr std::int64_t tokens = 13, rows = 40;
      std::vector<float> wide = drawn(random, rows * (cols + 2)), stay = drawn(random, tokens * cols);
      std::vector<T> x(wide.size()), addend(stay.size());
      for (std::size_t i = 0; i < wide.size(); ++i) x[i] = T(wide[i]);
      for (std::size_t i = 0; i < stay.size(); ++i) addend[i] = T(stay[i]);
      const std::vector<float> weights = drawn(random, tokens * taken);
      std::vector<std::int32_t> places(index(tokens * taken));
      for (std::int32_t& place : places) place = static_cast<std::int32_t>(random() % rows);
      std::vector<T> out = addend;  // aliases the addend
      weighted_rows(*stream, {.x = ConstMatrix(x.data(), dtype, rows, cols, cols + 2),
                              .taken = taken,
                              .places = places.data(),
                              .weights = weights.data(),
                              .addend = ConstMatrix(out.data(), dtype, tokens, cols, cols),
                              .out = {out.data(), dtype, tokens, cols, cols}});
      stream->synchronize();
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t c = 0; c < cols; ++c) {
          double sum = value_of(addend[index(t * cols + c)]), size = std::abs(sum);
          for (std::int64_t j = 0; j < taken; ++j) {
            const double term = static_cast<double>(weights[index(t * taken + j)]) *
                                value_of(x[index(places[index(t * taken + j)] * (cols + 2) + c)]);
            sum += term;
            size += std::abs(term);
          }
          EXPECT_NEAR(value_of(out[index(t * cols + c)]), sum, bound * size) << cols << ", " << taken;
        }
      }
    }
  }
}

TEST(WeightedRows, AreThoseOfADoubleSum) {
  expect_sums<float>(DType::f32, 1e-6);
  expect_sums<Bf16>(DType::bf16, 1.0 / 256);
}

TEST(Deal, RowsStandByExpertAndToken) {
  const std::vector<std::int32_t> experts = {4, 0, 2, 0, 4, 1};  // two for each of three tokens
  const std::vector<float> weights = {0.4f, 0.6f, 0.1f, 0.9f, 0.7f, 0.3f};
  std::vector<std::int32_t> begins(6, -1), row_tokens(6, -1), places(6, -1);
  std::vector<float> place_weights(6, -1);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  DealArgs args{.experts = experts.data(),
                .weights = weights.data(),
                .tokens = 3,
                .taken = 2,
                .count = 5,
                .begins = begins.data(),
                .row_tokens = row_tokens.data(),
                .places = places.data(),
                .place_weights = place_weights.data()};
  deal(*stream, args);
  stream->synchronize();
  EXPECT_EQ(begins, (std::vector<std::int32_t>{0, 2, 3, 4, 4, 6}));
  EXPECT_EQ(row_tokens, (std::vector<std::int32_t>{0, 1, 2, 1, 0, 2}));
  EXPECT_EQ(places, (std::vector<std::int32_t>{0, 4, 1, 3, 2, 5}));
  EXPECT_EQ(place_weights, (std::vector<float>{0.6f, 0.4f, 0.9f, 0.1f, 0.3f, 0.7f}));
  args.taken = 6;
  EXPECT_THROW(deal(*stream, args), std::exception) << "more than there are";
}

}  // namespace
}  // namespace octet::ops::routing_test
