// Backward of routing, and the load-balancing loss, against finite differences in double.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "octet/device/cpu.h"
#include "octet/ops/routing.h"

namespace octet::ops::routing_backward_test {
namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// How tokens choose experts.
enum class Load { random, one_has_all, one_has_none, ties, all_low };

constexpr std::int64_t kTokens = 11, kExperts = 5;

struct Routing {
  /// `capacity`: of each expert; 0: no limit.
  Routing(Load load, std::int64_t taken_, bool normalised_, RouterScores scores_ = RouterScores::softmax,
          float scale_ = 1, std::int64_t capacity = 0)
      : taken(taken_), normalised(normalised_), scores(scores_), scale(scale_) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 1);
    for (std::int64_t i = 0; i < kTokens * kExperts; ++i) {
      const std::int64_t e = i % kExperts;
      float logit = load == Load::ties ? 0.5f : normal(random);
      if (load == Load::one_has_all && e == 3) logit += 20;
      if (load == Load::one_has_none && e == 1) logit -= 20;
      if (load == Load::all_low) logit -= 200;
      logits.push_back(logit);
    }
    const auto rows = index(kTokens * taken);
    experts.resize(rows), places.resize(rows), row_tokens.resize(rows);
    weights.resize(rows), place_weights.resize(rows);
    begins.resize(index(kExperts + 1));
    route(*stream, {.logits = logits_matrix(),
                    .taken = taken,
                    .normalised = normalised,
                    .scores = scores,
                    .scale = scale,
                    .experts = experts.data(),
                    .weights = weights.data()});
    deal_rows();
    if (capacity > 0) {
      limit_rows(*stream, {.experts = experts.data(),
                           .weights = weights.data(),
                           .taken = taken,
                           .count = kExperts,
                           .capacity = capacity,
                           .begins = begins.data(),
                           .row_tokens = row_tokens.data()});
      deal_rows();
    }
    stream->synchronize();
  }
  void deal_rows() {
    deal(*stream, {.experts = experts.data(),
                   .weights = weights.data(),
                   .tokens = kTokens,
                   .taken = taken,
                   .count = kExperts,
                   .begins = begins.data(),
                   .row_tokens = row_tokens.data(),
                   .places = places.data(),
                   .place_weights = place_weights.data()});
  }
  ConstMatrix logits_matrix() const { return {logits.data(), DType::f32, kTokens, kExperts, kExperts}; }
  /// Returns the expert of a row.
  std::int64_t expert_of(std::int64_t row) const {
    std::int64_t e = 0;
    while (begins[index(e + 1)] <= row) ++e;
    return e;
  }

  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream({.name = "test"});
  std::int64_t taken;
  bool normalised;
  RouterScores scores;
  float scale;
  std::vector<float> logits, weights, place_weights;
  std::vector<std::int32_t> experts, begins, row_tokens, places;
};

std::vector<double> softmax(const std::vector<double>& x) {
  double sum = 0;
  std::vector<double> p;
  for (const double one : x) p.push_back(std::exp(one)), sum += p.back();
  for (double& one : p) one /= sum;
  return p;
}

std::vector<float> drawn(std::mt19937& random, std::int64_t count) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(index(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// d f / d x[i] by finite differences.
double difference(std::vector<double> x, std::size_t i, const std::function<double(std::vector<double>)>& f) {
  constexpr double step = 1e-5;
  std::vector<double> y = x;
  x[i] -= step, y[i] += step;
  return (f(y) - f(x)) / (2 * step);
}

TEST(RouteBackward, IsTheDifferenceOfTheWeightsForAnyLoad) {
  std::mt19937 random(5);
  for (const Load load : {Load::random, Load::one_has_all, Load::one_has_none, Load::ties}) {
    for (const std::int64_t taken : {1, 2, 5}) {
      for (const bool normalised : {false, true}) {
        for (const bool balanced : {false, true}) {
          const Routing r(load, taken, normalised);
          const std::vector<float> d_weights = drawn(random, kTokens * taken);
          const std::vector<float> d_probabilities = drawn(random, kExperts);
          std::vector<float> found(r.logits.size());
          route_backward(*r.stream, {.logits = r.logits_matrix(),
                                     .taken = taken,
                                     .normalised = normalised,
                                     .experts = r.experts.data(),
                                     .places = r.places.data(),
                                     .d_weights = d_weights.data(),
                                     .d_probabilities = balanced ? d_probabilities.data() : nullptr,
                                     .d_logits = {found.data(), DType::f32, kTokens, kExperts, kExperts}});
          r.stream->synchronize();
          for (std::int64_t t = 0; t < kTokens; ++t) {
            const auto* const x = r.logits.data() + t * kExperts;
            const auto value = [&](const std::vector<double>& logits) {
              const std::vector<double> p = softmax(logits);
              double of_taken = 0, sum = 0;
              for (std::int64_t j = 0; j < taken; ++j) of_taken += p[index(r.experts[index(t * taken + j)])];
              for (std::int64_t j = 0; j < taken; ++j) {
                const std::int64_t row = r.places[index(t * taken + j)];
                const double weight = p[index(r.expert_of(row))] / (normalised ? of_taken : 1);
                sum += static_cast<double>(d_weights[index(row)]) * weight;
              }
              for (std::size_t e = 0; balanced && e < p.size(); ++e)
                sum += static_cast<double>(d_probabilities[e]) * p[e];
              return sum;
            };
            for (std::int64_t e = 0; e < kExperts; ++e) {
              EXPECT_NEAR(found[index(t * kExperts + e)], difference({x, x + kExperts}, index(e), value),
                          2e-6)
                  << static_cast<int>(load) << ", " << taken << " taken, token " << t;
            }
          }
        }
      }
    }
  }
}

TEST(RouteBackward, OfSigmoidScoresIsTheDifferenceOfTheWeightsForAnyLoad) {
  std::mt19937 random(6);
  for (const Load load : {Load::random, Load::one_has_all, Load::one_has_none, Load::ties, Load::all_low}) {
    for (const std::int64_t taken : {1, 2, 5}) {
      for (const bool normalised : {false, true}) {
        for (const float scale : {1.0f, 2.5f}) {
          const Routing r(load, taken, normalised, RouterScores::sigmoid, scale);
          const std::vector<float> d_weights = drawn(random, kTokens * taken);
          std::vector<float> found(r.logits.size(), 7);
          route_backward(*r.stream, {.logits = r.logits_matrix(),
                                     .taken = taken,
                                     .normalised = normalised,
                                     .scores = RouterScores::sigmoid,
                                     .scale = scale,
                                     .experts = r.experts.data(),
                                     .places = r.places.data(),
                                     .d_weights = d_weights.data(),
                                     .d_logits = {found.data(), DType::f32, kTokens, kExperts, kExperts}});
          r.stream->synchronize();
          for (std::int64_t t = 0; t < kTokens; ++t) {
            const auto* const x = r.logits.data() + t * kExperts;
            const auto value = [&](const std::vector<double>& logits) {
              const auto p = [&](std::int64_t e) { return 1 / (1 + std::exp(-logits[index(e)])); };
              double of_taken = 1e-20, sum = 0;
              for (std::int64_t j = 0; j < taken; ++j) of_taken += p(r.experts[index(t * taken + j)]);
              for (std::int64_t j = 0; j < taken; ++j) {
                const std::int64_t row = r.places[index(t * taken + j)];
                const double weight = p(r.expert_of(row)) / (normalised ? of_taken : 1);
                sum += static_cast<double>(scale) * static_cast<double>(d_weights[index(row)]) * weight;
              }
              return sum;
            };
            for (std::int64_t e = 0; e < kExperts; ++e) {
              EXPECT_NEAR(found[index(t * kExperts + e)], difference({x, x + kExperts}, index(e), value),
                          4e-6)
                  << static_cast<int>(load) << ", " << taken << " taken, token " << t;
            }
          }
        }
      }
    }
  }
}

// The weight of a dropped row is 0 whatever the logits are. The other weights of its token stay, and their
// sum is still that of all choices.
TEST(RouteBackward, OfDroppedRowsIsTheDifferenceOfTheWeightsThatStay) {
  std::mt19937 random(8);
  for (const Load load : {Load::random, Load::one_has_all, Load::ties}) {
    for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
      for (const bool normalised : {false, true}) {
        const Routing r(load, 2, normalised, scores, 1, 3);
        std::vector<float> d_weights = drawn(random, kTokens * 2);
        const std::int32_t rows = r.begins.back();
        EXPECT_LT(rows, kTokens * 2);
        std::fill(d_weights.begin() + rows, d_weights.end(), std::nanf(""));
        std::vector<float> found(r.logits.size());
        route_backward(*r.stream, {.logits = r.logits_matrix(),
                                   .taken = 2,
                                   .normalised = normalised,
                                   .scores = scores,
                                   .experts = r.experts.data(),
                                   .places = r.places.data(),
                                   .d_weights = d_weights.data(),
                                   .d_logits = {found.data(), DType::f32, kTokens, kExperts, kExperts}});
        r.stream->synchronize();
        for (std::int64_t t = 0; t < kTokens; ++t) {
          const auto* const x = r.logits.data() + t * kExperts;
          const auto value = [&](const std::vector<double>& logits) {
            std::vector<double> p = softmax(logits);
            if (scores == RouterScores::sigmoid) {
              for (std::size_t e = 0; e < p.size(); ++e) p[e] = 1 / (1 + std::exp(-logits[e]));
            }
            double of_taken = 0, sum = 0;
            for (std::int64_t j = 0; j < 2; ++j) {
              const std::int32_t e = r.experts[index(2 * t + j)];
              of_taken += p[index(e < 0 ? -1 - e : e)];
            }
            for (std::int64_t j = 0; j < 2; ++j) {
              const std::int64_t row = r.places[index(2 * t + j)];
              if (row < 0) continue;
              const double weight = p[index(r.expert_of(row))] / (normalised ? of_taken : 1);
              sum += static_cast<double>(d_weights[index(row)]) * weight;
            }
            return sum;
          };
          for (std::int64_t e = 0; e < kExperts; ++e)
            EXPECT_NEAR(found[index(t * kExperts + e)], difference({x, x + kExperts}, index(e), value), 4e-6);
        }
      }
    }
  }
}

TEST(WeighBackward, LeavesOutDroppedRows) {
  std::mt19937 random(9);
  constexpr std::int64_t width = 7;
  const Routing r(Load::one_has_all, 2, true, RouterScores::softmax, 1, 4);
  const std::int64_t rows = r.begins.back();
  const std::vector<float> x = drawn(random, rows * width), d = drawn(random, rows * width);
  std::vector<float> found = d, d_weights(index(rows), -1);
  weigh_backward(*r.stream, {.x = {x.data(), DType::f32, rows, width, width},
                             .d = {found.data(), DType::f32, rows, width, width},
                             .tokens = kTokens,
                             .taken = 2,
                             .places = r.places.data(),
                             .weights = r.place_weights.data(),
                             .d_weights = d_weights.data()});
  std::vector<float> out(index(kTokens * width));
  weighted_rows(*r.stream, {.x = {x.data(), DType::f32, rows, width, width},
                            .taken = 2,
                            .places = r.places.data(),
                            .weights = r.place_weights.data(),
                            .out = {out.data(), DType::f32, kTokens, width, width}});
  r.stream->synchronize();
  std::int64_t dropped = 0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t c = 0; c < width; ++c) {
      float sum = 0;
      for (std::int64_t j = 0; j < 2; ++j) {
        const std::int64_t row = r.places[index(2 * t + j)];
        const float weight = r.place_weights[index(2 * t + j)];
        if (row < 0) {
          EXPECT_EQ(weight, 0);
          dropped += c == 0 ? 1 : 0;
          continue;
        }
        sum += weight * x[index(row * width + c)];
        EXPECT_EQ(found[index(row * width + c)], weight * d[index(row * width + c)]);
      }
      EXPECT_EQ(out[index(t * width + c)], sum);
    }
  }
  EXPECT_EQ(dropped, kTokens * 2 - rows);
  EXPECT_GE(dropped, kTokens - 4);
}

// A sum of weights that is 0 in fp32 divides nothing by 0.
TEST(RouteBackward, OfScoresThatAreZeroIsZero) {
  const Routing r(Load::all_low, 2, true, RouterScores::sigmoid);
  for (const float weight : r.weights) EXPECT_EQ(weight, 0);
}

TEST(RouteBackward, RoundsOnceToBf16) {
  std::mt19937 random(5);
  const Routing r(Load::random, 2, true);
  const std::vector<float> d_weights = drawn(random, kTokens * 2);
  std::vector<float> wide(r.logits.size());
  std::vector<Bf16> narrow(r.logits.size());
  const auto run = [&](const Matrix& out) {
    route_backward(*r.stream, {.logits = r.logits_matrix(),
                               .taken = 2,
                               .normalised = true,
                               .experts = r.experts.data(),
                               .places = r.places.data(),
                               .d_weights = d_weights.data(),
                               .d_logits = out});
    r.stream->synchronize();
  };
  run({wide.data(), DType::f32, kTokens, kExperts, kExperts});
  run({narrow.data(), DType::bf16, kTokens, kExperts, kExperts});
  for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(narrow[i].bits, to_bf16(wide[i]));
}

TEST(WeighBackward, GivesGradientsOfWeightsAndWeighsRows) {
  std::mt19937 random(9);
  for (const Load load : {Load::random, Load::one_has_all, Load::one_has_none, Load::ties}) {
    constexpr std::int64_t taken = 2, width = 7, out = 4, rows = kTokens * taken;
    const Routing r(load, taken, true);
    const std::vector<float> x = drawn(random, rows * width), d = drawn(random, rows * width),
                             d_y = drawn(random, rows * out);
    for (const bool trained : {false, true}) {
      std::vector<float> found = d, found_y = d_y, d_weights(index(rows), -1);
      weigh_backward(*r.stream,
                     {.x = {x.data(), DType::f32, rows, width, width},
                      .d = {found.data(), DType::f32, rows, width, width},
                      .d_y = trained ? Matrix{found_y.data(), DType::f32, rows, out, out} : Matrix{},
                      .tokens = kTokens,
                      .taken = taken,
                      .places = r.places.data(),
                      .weights = r.place_weights.data(),
                      .d_weights = d_weights.data()});
      r.stream->synchronize();
      for (std::int64_t t = 0; t < kTokens; ++t) {
        for (std::int64_t j = 0; j < taken; ++j) {
          const std::int64_t row = r.places[index(t * taken + j)];
          const float weight = r.place_weights[index(t * taken + j)];
          double sum = 0;
          for (std::int64_t c = 0; c < width; ++c) {
            const std::size_t at = index(row * width + c);
            sum += static_cast<double>(x[at]) * static_cast<double>(d[at]);
            EXPECT_EQ(found[at], weight * d[at]);
          }
          EXPECT_NEAR(d_weights[index(row)], sum, 1e-6);
          for (std::int64_t c = 0; c < out; ++c) {
            const std::size_t at = index(row * out + c);
            EXPECT_EQ(found_y[at], trained ? weight * d_y[at] : d_y[at]);
          }
        }
      }
    }
  }
}

TEST(WeightedRows, WithoutWeightsAreSums) {
  const Routing r(Load::random, 2, true);
  std::mt19937 random(1);
  const std::vector<float> x = drawn(random, kTokens * 2 * 3);
  std::vector<float> out(index(kTokens * 3), 1.0f);
  weighted_rows(*r.stream, {.x = {x.data(), DType::f32, kTokens * 2, 3, 3},
                            .taken = 2,
                            .places = r.places.data(),
                            .addend = ConstMatrix(out.data(), DType::f32, kTokens, 3, 3),
                            .out = {out.data(), DType::f32, kTokens, 3, 3}});
  r.stream->synchronize();
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t c = 0; c < 3; ++c) {
      const float sum =
          x[index(r.places[index(2 * t)] * 3 + c)] + x[index(r.places[index(2 * t + 1)] * 3 + c)];
      EXPECT_EQ(out[index(t * 3 + c)], 1.0f + sum);
    }
  }
}

// Tests one layer; callers add the loads of several layers beforehand.
TEST(BalanceLoss, IsTheProductOfLoadsAndProbabilities) {
  for (const Load load : {Load::random, Load::one_has_all, Load::one_has_none, Load::ties}) {
    const Routing r(load, 2, true);
    std::vector<double> counts(kExperts), probabilities(kExperts);
    const std::vector<std::int32_t> targets{3, -1, 0, 7};
    double loss = 1;
    std::vector<float> gradient(kExperts);
    for (int layer = 0; layer < 2; ++layer) {
      add_load(*r.stream, {.logits = r.logits_matrix(),
                           .begins = r.begins.data(),
                           .counts = counts.data(),
                           .probabilities = probabilities.data()});
    }
    balance_loss(*r.stream, {.counts = counts.data(),
                             .probabilities = probabilities.data(),
                             .count = kExperts,
                             .rows = 2 * kTokens,
                             .coefficient = 0.1,
                             .targets = targets.data(),
                             .labels = 4,
                             .loss_sum = &loss,
                             .d_probabilities = gradient.data()});
    r.stream->synchronize();
    std::vector<double> p(kExperts);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const auto* const x = r.logits.data() + t * kExperts;
      const std::vector<double> own = softmax({x, x + kExperts});
      for (std::size_t e = 0; e < own.size(); ++e) p[e] += own[e] / kTokens;
    }
    double expected = 0, sum = 0;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const double share = static_cast<double>(r.begins[index(e + 1)] - r.begins[index(e)]) / kTokens;
      expected += 3 * 0.1 * kExperts * share * p[index(e)];
      sum += share;
      EXPECT_NEAR(gradient[index(e)], 3 * 0.1 * kExperts * share / (2 * kTokens), 1e-7);
    }
    EXPECT_NEAR(sum, 2, 1e-12) << "no token is dropped";
    EXPECT_NEAR(loss, 1 + expected, 1e-6);
  }
}

/// Σ over tokens of the squared logarithm, in double.
double squares(const std::vector<float>& logits) {
  double all = 0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    double sum = 0;
    for (std::int64_t e = 0; e < kExperts; ++e)
      sum += std::exp(static_cast<double>(logits[index(t * kExperts + e)]));
    all += std::log(sum) * std::log(sum);
  }
  return all;
}

TEST(ZLoss, IsTheMeanSquareOfTheLogarithmsTimesTheLabels) {
  for (const Load load : {Load::random, Load::one_has_all, Load::ties, Load::all_low}) {
    const Routing r(load, 2, true);
    const std::vector<std::int32_t> targets{3, -1, 0, 7};
    double sum = 0, loss = 1;
    float slope = 0;
    for (int layer = 0; layer < 2; ++layer)
      add_log_sums(*r.stream, {.logits = r.logits_matrix(), .sum = &sum});
    z_loss(*r.stream, {.sum = &sum,
                       .tokens = kTokens,
                       .coefficient = 0.01,
                       .targets = targets.data(),
                       .labels = 4,
                       .loss_sum = &loss,
                       .slope = &slope});
    r.stream->synchronize();
    const std::vector<float>& logits = r.logits;
    const double expected = 2 * squares(logits);
    EXPECT_NEAR(sum, expected, 1e-6 * expected);
    EXPECT_NEAR(loss, 1 + 3 * 0.01 * expected / kTokens, 1e-6 * expected);
    EXPECT_NEAR(slope, 2 * 3 * 0.01 / kTokens, 1e-8);
  }
}

TEST(ZLoss, AddsItsDifferenceToTheGradientOfTheLogits) {
  std::mt19937 random(5);
  for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
    for (const Load load : {Load::random, Load::one_has_all, Load::ties}) {
      const Routing r(load, 2, true, scores);
      const std::vector<float> d_weights = drawn(random, kTokens * 2);
      const float slope = 0.3f;
      std::vector<float> with(r.logits.size()), without(r.logits.size());
      for (const bool z : {false, true}) {
        route_backward(*r.stream, {.logits = r.logits_matrix(),
                                   .taken = 2,
                                   .normalised = true,
                                   .scores = scores,
                                   .experts = r.experts.data(),
                                   .places = r.places.data(),
                                   .d_weights = d_weights.data(),
                                   .z_slope = z ? &slope : nullptr,
                                   .d_logits = {z ? with.data() : without.data(), DType::f32, kTokens,
                                                kExperts, kExperts}});
      }
      r.stream->synchronize();
      for (std::int64_t t = 0; t < kTokens; ++t) {
        const auto* const x = r.logits.data() + t * kExperts;
        const auto value = [&](const std::vector<double>& logits) {
          double sum = 0;
          for (const double logit : logits) sum += std::exp(logit);
          return 0.15 * std::log(sum) * std::log(sum);
        };
        for (std::int64_t e = 0; e < kExperts; ++e) {
          const std::size_t at = index(t * kExperts + e);
          EXPECT_NEAR(with[at] - without[at], difference({x, x + kExperts}, index(e), value), 1e-5)
              << static_cast<int>(load) << ", token " << t;
        }
      }
    }
  }
}

TEST(GatedRows, AndTheirGradientAreThoseInDouble) {
  constexpr std::int64_t tokens = 5, cols = 7;
  std::mt19937 random(4);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  const std::vector<float> logits = drawn(random, tokens), x = drawn(random, tokens * cols),
                           addend = drawn(random, tokens * cols), d_out = drawn(random, tokens * cols);
  std::vector<float> out = addend, d_x(x.size()), d_logits(index(tokens));
  const auto matrix = [](const std::vector<float>& values, std::int64_t width) {
    return ConstMatrix(values.data(), DType::f32, tokens, width, width);
  };
  gated_rows(*stream, {.logits = logits.data(),
                       .x = matrix(x, cols),
                       .addend = matrix(out, cols),
                       .out = {out.data(), DType::f32, tokens, cols, cols}});
  gated_rows_backward(*stream, {.logits = logits.data(),
                                .x = matrix(x, cols),
                                .d_out = matrix(d_out, cols),
                                .d_x = {d_x.data(), DType::f32, tokens, cols, cols},
                                .d_logits = {d_logits.data(), DType::f32, tokens, 1, 1}});
  stream->synchronize();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto value = [&](const std::vector<double>& logit) {
      double sum = 0;
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::size_t at = index(t * cols + c);
        sum += static_cast<double>(d_out[at]) * static_cast<double>(x[at]) / (1 + std::exp(-logit[0]));
      }
      return sum;
    };
    const double gate = 1 / (1 + std::exp(-static_cast<double>(logits[index(t)])));
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::size_t at = index(t * cols + c);
      EXPECT_NEAR(out[at], static_cast<double>(addend[at]) + gate * static_cast<double>(x[at]), 1e-6);
      EXPECT_NEAR(d_x[at], gate * static_cast<double>(d_out[at]), 1e-6);
    }
    EXPECT_NEAR(d_logits[index(t)], difference({static_cast<double>(logits[index(t)])}, 0, value), 1e-5);
  }
}

TEST(GatedRows, WithoutLogitsAreSums) {
  std::mt19937 random(4);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  const std::vector<float> x = drawn(random, 35), addend = drawn(random, 35);
  std::vector<float> out = addend;
  gated_rows(*stream, {.x = ConstMatrix(x.data(), DType::f32, 5, 7, 7),
                       .addend = ConstMatrix(out.data(), DType::f32, 5, 7, 7),
                       .out = {out.data(), DType::f32, 5, 7, 7}});
  stream->synchronize();
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], addend[i] + x[i]);
}

}  // namespace
}  // namespace octet::ops::routing_backward_test
