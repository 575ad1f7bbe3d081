// The experts of tokens, and sums of weighted rows, against references in double.
#include "octet/ops/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
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

/// Choices after the limit, and their rows.
struct Limited {
  std::vector<std::int32_t> experts, begins, row_tokens, places;
  std::vector<float> place_weights;
};

Limited limited(const Routed& chosen, std::int64_t experts, std::int64_t taken, std::int64_t capacity) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  const std::size_t rows = chosen.experts.size();
  Limited out{chosen.experts, std::vector<std::int32_t>(index(experts + 1)),
              std::vector<std::int32_t>(rows, -7), std::vector<std::int32_t>(rows, -7),
              std::vector<float>(rows, -7)};
  const auto deal_rows = [&] {
    deal(*stream, {.experts = out.experts.data(),
                   .weights = chosen.weights.data(),
                   .tokens = std::ssize(chosen.experts) / taken,
                   .taken = taken,
                   .count = experts,
                   .begins = out.begins.data(),
                   .row_tokens = out.row_tokens.data(),
                   .places = out.places.data(),
                   .place_weights = out.place_weights.data()});
  };
  deal_rows();
  limit_rows(*stream, {.experts = out.experts.data(),
                       .weights = chosen.weights.data(),
                       .taken = taken,
                       .count = experts,
                       .capacity = capacity,
                       .begins = out.begins.data(),
                       .row_tokens = out.row_tokens.data()});
  deal_rows();
  stream->synchronize();
  return out;
}

TEST(LimitRows, KeepsTheLargestWeightsOfEachExpertAndTheFirstOfEqualOnes) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool ties : {false, true}) {
    for (const std::int64_t experts : {2, 5, 33}) {
      constexpr std::int64_t taken = 2, tokens = 41;
      std::vector<float> logits(index(tokens * experts));
      for (float& logit : logits) logit = normal(random);
      Routed chosen = routed(logits, tokens, experts, experts, taken);
      for (float& weight : chosen.weights) weight = ties ? 0.5f : weight;
      chosen.weights[9] = nan;
      for (const std::int64_t capacity : {1, 2, 7, 40, 41}) {
        const Limited found = limited(chosen, experts, taken, capacity);
        std::vector<std::int64_t> kept(index(experts));
        for (std::int64_t i = 0; i < tokens * taken; ++i) {
          const std::int32_t e = chosen.experts[index(i)];
          std::int64_t before = 0;
          for (std::int64_t k = 0; k < tokens * taken; ++k) {
            if (chosen.experts[index(k)] != e || k == i) continue;
            const float own = chosen.weights[index(i)], other = chosen.weights[index(k)];
            const bool equal = own == other || (std::isnan(own) && std::isnan(other));
            before += equal ? k < i : std::isnan(other) || (!std::isnan(own) && other > own);
          }
          const bool stays = before < capacity;
          kept[index(e)] += stays ? 1 : 0;
          EXPECT_EQ(found.experts[index(i)], stays ? e : -1 - e)
              << "choice " << i << ", capacity " << capacity;
        }
        std::int32_t rows = 0;
        for (std::int64_t e = 0; e < experts; ++e) {
          EXPECT_EQ(found.begins[index(e)], rows);
          EXPECT_LE(kept[index(e)], capacity);
          rows += static_cast<std::int32_t>(kept[index(e)]);
        }
        EXPECT_EQ(found.begins[index(experts)], rows);
        std::vector<int> used(index(rows));
        for (std::int64_t i = 0; i < tokens * taken; ++i) {
          const std::int32_t place = found.places[index(i)];
          if (place < 0) {
            EXPECT_EQ(place, -1);
            EXPECT_EQ(found.place_weights[index(i)], 0);
            continue;
          }
          ++used.at(index(place));
          EXPECT_EQ(found.row_tokens[index(place)], i / taken);
        }
        EXPECT_TRUE(std::ranges::all_of(used, [](int times) { return times == 1; }));
      }
    }
  }
}

// Given experts have the weights of their scores. If they equal the choice, weights have the same bits.
TEST(Route, TakesGivenExpertsInTheirOrder) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 2);
  constexpr std::int64_t experts = 6, taken = 3, tokens = 9;
  std::vector<float> logits(index(tokens * experts));
  for (float& logit : logits) logit = normal(random);
  for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
    const auto device = make_cpu_device();
    const auto stream = device->make_stream({.name = "test"});
    const auto run = [&](const std::vector<std::int32_t>* given) {
      Routed out{std::vector<std::int32_t>(index(tokens * taken)), std::vector<float>(index(tokens * taken))};
      route(*stream, {.logits = ConstMatrix(logits.data(), DType::f32, tokens, experts, experts),
                      .taken = taken,
                      .scores = scores,
                      .scale = 1.5f,
                      .groups = 3,
                      .taken_groups = 2,
                      .given = given == nullptr ? nullptr : given->data(),
                      .experts = out.experts.data(),
                      .weights = out.weights.data()});
      stream->synchronize();
      return out;
    };
    const Routed own = run(nullptr);
    std::vector<std::int32_t> given = own.experts;
    EXPECT_EQ(run(&given).weights, own.weights);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < taken; ++j)
        given[index(t * taken + j)] = t == 4 ? -1 : static_cast<std::int32_t>((t + 2 * j) % experts);
    }
    const Routed other = run(&given);
    for (std::int64_t t = 0; t < tokens; ++t) {
      double all = 0;
      const auto score = [&](std::int32_t e) {
        const auto x = static_cast<double>(logits[index(t * experts + e)]);
        return scores == RouterScores::sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x);
      };
      for (std::int64_t j = 0; j < taken; ++j) all += score(other.experts[index(t * taken + j)]);
      for (std::int64_t j = 0; j < taken; ++j) {
        const std::size_t at = index(t * taken + j);
        EXPECT_EQ(other.experts[at], t == 4 ? own.experts[at] : given[at]);
        EXPECT_NEAR(other.weights[at], 1.5 * score(other.experts[at]) / all, 1e-5);
      }
    }
  }
}

TEST(Route, WhatCannotBeIsRefused) {
  const std::vector<float> logits(2000);
  EXPECT_THROW(routed(logits, 1, 4, 4, 5), std::logic_error);
  EXPECT_THROW(routed(logits, 1, 4, 4, 0), std::logic_error);
  EXPECT_THROW(routed(logits, 1, 1025, 1025, 1), std::logic_error);
}

/// A router of the families of models, or an extreme one.
struct RouterCase {
  const char* name;
  std::int64_t experts, taken;
  RouterScores scores = RouterScores::sigmoid;
  bool normalised = true;
  float scale = 1.0f;
  bool biased = false;
  std::int64_t groups = 1, taken_groups = 1;
  int group_best = 2;
};
constexpr RouterCase kRouters[] = {
    {.name = "olmoe", .experts = 64, .taken = 8, .scores = RouterScores::softmax, .normalised = false},
    {.name = "glm4_moe", .experts = 128, .taken = 8, .scale = 2.5f, .biased = true},
    {.name = "deepseek_v3",
     .experts = 256,
     .taken = 8,
     .scale = 2.5f,
     .biased = true,
     .groups = 8,
     .taken_groups = 4},
    {.name = "deepseek_v2",
     .experts = 160,
     .taken = 6,
     .scores = RouterScores::softmax,
     .normalised = false,
     .scale = 16.0f,
     .groups = 8,
     .taken_groups = 3,
     .group_best = 1},
    {.name = "not normalised", .experts = 16, .taken = 3, .normalised = false, .scale = 0.5f},
    {.name = "biased softmax", .experts = 33, .taken = 4, .scores = RouterScores::softmax, .biased = true},
    {.name = "softmax in groups",
     .experts = 24,
     .taken = 5,
     .scores = RouterScores::softmax,
     .groups = 4,
     .taken_groups = 2},
    {.name = "groups of two", .experts = 1024, .taken = 5, .biased = true, .groups = 512, .taken_groups = 3},
    {.name = "all of the groups", .experts = 12, .taken = 6, .biased = true, .groups = 4, .taken_groups = 2},
    {.name = "one expert", .experts = 1, .taken = 1},
};

/// How the logits of tokens are distributed.
enum class Load { random, extreme, ties, pairs, low };
std::vector<float> logits_of(Load load, std::int64_t tokens, std::int64_t experts) {
  std::mt19937 random(13);
  std::normal_distribution<float> normal(0, load == Load::extreme ? 60.0f : 2.0f);
  std::vector<float> logits;
  for (std::int64_t i = 0; i < tokens * experts; ++i) {
    const float drawn = normal(random);
    // Only powers of two, so that equal logits stay equal.
    if (load == Load::ties) logits.push_back(i / experts % 2 == 0 ? 0.5f : -2.0f);
    if (load == Load::pairs) logits.push_back(i % experts % 2 == 1 ? logits.back() : drawn);
    if (load == Load::low) logits.push_back(-200.0f + drawn);
    if (load == Load::random || load == Load::extreme) logits.push_back(drawn);
  }
  return logits;
}

/// Experts and weights of a token in double, from scores that are rounded to fp32.
std::vector<std::pair<std::int32_t, double>> reference(const RouterCase& c, const float* x,
                                                       const std::vector<float>& bias) {
  std::vector<double> p;
  double all = 0;
  const float highest = *std::max_element(x, x + c.experts);
  for (std::int64_t e = 0; e < c.experts; ++e) {
    const auto logit = static_cast<double>(x[e]);
    p.push_back(c.scores == RouterScores::sigmoid ? 1 / (1 + std::exp(-logit))
                                                  : std::exp(logit - static_cast<double>(highest)));
    all += p.back();
  }
  std::vector<float> choice;
  for (std::int64_t e = 0; e < c.experts; ++e) {
    if (c.scores == RouterScores::softmax) p[index(e)] /= all;
    choice.push_back(static_cast<float>(p[index(e)]) + (c.biased ? bias[index(e)] : 0.0f));
  }
  const auto best_first = [](std::vector<float> values) {
    std::vector<std::int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    return order;
  };
  const std::int64_t size = c.experts / c.groups;
  std::vector<float> of_groups;
  for (std::int64_t g = 0; g < c.groups; ++g) {
    std::vector<float> own(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::ranges::sort(own, std::greater<>());
    of_groups.push_back(own.size() > 1 && c.group_best == 2 ? own[0] + own[1] : own[0]);
  }
  std::vector<bool> open(index(c.groups));
  const std::vector<std::int32_t> groups = best_first(of_groups);
  for (std::int64_t i = 0; i < c.taken_groups; ++i) open[index(groups[index(i)])] = true;
  std::vector<std::pair<std::int32_t, double>> found;
  double sum = 1e-20;
  for (const std::int32_t e : best_first(choice)) {
    if (std::ssize(found) == c.taken || !open[index(e / size)]) continue;
    found.emplace_back(e, p[index(e)]);
    sum += p[index(e)];
  }
  for (auto& [expert, weight] : found)
    weight = static_cast<double>(c.scale) * weight / (c.normalised ? sum : 1);
  return found;
}

TEST(Route, EveryKindOfRouterChoosesLikeAReferenceInDouble) {
  constexpr std::int64_t tokens = 29;
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  for (const RouterCase& c : kRouters) {
    for (const Load load : {Load::random, Load::extreme, Load::ties, Load::pairs, Load::low}) {
      SCOPED_TRACE(std::string(c.name) + ", load " + std::to_string(static_cast<int>(load)));
      const std::vector<float> logits = logits_of(load, tokens, c.experts);
      // Negative, so that an expert of another group with a score of 0 would be chosen.
      std::vector<float> bias;
      for (std::int64_t e = 0; e < c.experts; ++e) bias.push_back(-1.25f + 0.25f * static_cast<float>(e % 5));
      Routed found{std::vector<std::int32_t>(index(tokens * c.taken), -1),
                   std::vector<float>(index(tokens * c.taken), -1)};
      route(*stream, {.logits = ConstMatrix(logits.data(), DType::f32, tokens, c.experts, c.experts),
                      .taken = c.taken,
                      .normalised = c.normalised,
                      .scores = c.scores,
                      .scale = c.scale,
                      .bias = c.biased ? bias.data() : nullptr,
                      .groups = c.groups,
                      .taken_groups = c.taken_groups,
                      .group_best = c.group_best,
                      .experts = found.experts.data(),
                      .weights = found.weights.data()});
      stream->synchronize();
      for (std::int64_t t = 0; t < tokens; ++t) {
        const auto expected = reference(c, logits.data() + t * c.experts, bias);
        ASSERT_EQ(std::ssize(expected), c.taken);
        for (std::int64_t j = 0; j < c.taken; ++j) {
          const auto& [expert, weight] = expected[index(j)];
          EXPECT_EQ(found.experts[index(t * c.taken + j)], expert) << "token " << t << ", " << j;
          EXPECT_NEAR(found.weights[index(t * c.taken + j)], weight, 1e-5 * weight + 1e-24) << "token " << t;
        }
      }
    }
  }
}

TEST(Route, TheBiasChangesTheChoiceAndNoWeight) {
  const std::vector<float> logits = {1.0f, 0.5f, -1.0f, 0.0f}, bias = {0, 0, 5, 0};
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  std::vector<std::int32_t> experts(2);
  std::vector<float> weights(2);
  route(*stream, {.logits = ConstMatrix(logits.data(), DType::f32, 1, 4, 4),
                  .taken = 2,
                  .normalised = false,
                  .scores = RouterScores::sigmoid,
                  .bias = bias.data(),
                  .experts = experts.data(),
                  .weights = weights.data()});
  stream->synchronize();
  EXPECT_EQ(experts, (std::vector<std::int32_t>{2, 0}));
  EXPECT_NEAR(weights[0], 1 / (1 + std::exp(1.0)), 1e-7);
  EXPECT_NEAR(weights[1], 1 / (1 + std::exp(-1.0)), 1e-7);
}

TEST(Route, GroupsThatCannotBeAreRefused) {
  const std::vector<float> logits(64);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  struct Row {
    std::int64_t taken, groups, taken_groups;
  };
  for (const Row row : {Row{1, 3, 1}, Row{1, 0, 1}, Row{1, 4, 5}, Row{1, 4, 0}, Row{5, 4, 2}, Row{1, 8, 1}}) {
    std::vector<std::int32_t> experts(8);
    std::vector<float> weights(8);
    const auto run = [&] {
      route(*stream, {.logits = ConstMatrix(logits.data(), DType::f32, 1, 8, 8),
                      .taken = row.taken,
                      .groups = row.groups,
                      .taken_groups = row.taken_groups,
                      .experts = experts.data(),
                      .weights = weights.data()});
    };
    EXPECT_THROW(run(), std::logic_error) << row.taken << ", " << row.groups << ", " << row.taken_groups;
  }
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
