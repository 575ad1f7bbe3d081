#include "octet/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "octet/base/error.h"

namespace octet::optim {
namespace {

ScheduleOptions options_of(const std::string& name, ScheduleArguments arguments = {}) {
  return {.name = name,
          .learning_rate = 2e-4,
          .warmup_steps = 10,
          .total_steps = 110,
          .arguments = std::move(arguments)};
}

double at(const ScheduleOptions& options, std::int64_t step) {
  return Schedule(options).factor(step);
}

// The same formulas in long double, written from the mathematics rather than from the code.
long double half_cosine(long double progress) {
  const long double c = std::cos(std::acos(-1.0L) * progress / 2);
  return c * c;  // (1 + cos x) / 2 = cos^2(x / 2)
}

TEST(Schedule, WarmUpStartsAtZeroAndReachesThePeak) {
  for (const char* name : {"linear", "cosine", "constant_with_warmup", "polynomial", "cosine_with_restarts",
                           "inverse_sqrt", "warmup_stable_decay"}) {
    EXPECT_EQ(at(options_of(name), 0), 0.0) << name;
    EXPECT_DOUBLE_EQ(at(options_of(name), 1), 0.1) << name;
    EXPECT_DOUBLE_EQ(at(options_of(name), 9), 0.9) << name;
    EXPECT_DOUBLE_EQ(at(options_of(name), 10), 1.0) << name;
  }
}

TEST(Schedule, ConstantHasNoWarmUp) {
  for (const std::int64_t step : {0, 1, 10, 109, 1000}) EXPECT_EQ(at(options_of("constant"), step), 1.0);
}

TEST(Schedule, LinearFallsToZeroAtTheEndAndStaysThere) {
  EXPECT_DOUBLE_EQ(at(options_of("linear"), 60), 0.5);
  EXPECT_DOUBLE_EQ(at(options_of("linear"), 109), 0.01);
  EXPECT_EQ(at(options_of("linear"), 110), 0.0);
  EXPECT_EQ(at(options_of("linear"), 500), 0.0);
}

TEST(Schedule, LinearEqualsPolynomialWithoutAnEnd) {
  for (std::int64_t step = 0; step <= 120; ++step) {
    EXPECT_NEAR(at(options_of("linear"), step), at(options_of("polynomial", {{"lr_end", 0.0}}), step), 1e-15);
  }
}

TEST(Schedule, CosineIsTheSquaredHalfAngle) {
  EXPECT_NEAR(at(options_of("cosine"), 60), 0.5, 1e-15);
  EXPECT_NEAR(at(options_of("cosine"), 35), 0.85355339059327376, 1e-15);  // (1 + sqrt(1/2)) / 2
  EXPECT_NEAR(at(options_of("cosine"), 110), 0.0, 1e-15);
  for (std::int64_t step = 10; step <= 110; ++step) {
    const long double progress = (step - 10) / 100.0L;
    EXPECT_NEAR(at(options_of("cosine"), step), double(half_cosine(progress)), 1e-15) << step;
    EXPECT_NEAR(at(options_of("cosine", {{"num_cycles", 1.5}}), step), double(half_cosine(3 * progress)),
                2e-15);
  }
}

TEST(Schedule, RestartsBeginEveryCycleAtThePeak) {
  const ScheduleOptions options = options_of("cosine_with_restarts", {{"num_cycles", 4.0}});
  for (const std::int64_t step : {10, 35, 60, 85}) EXPECT_DOUBLE_EQ(at(options, step), 1.0) << step;
  EXPECT_NEAR(at(options, 34), double(half_cosine(0.96L)), 1e-15);
  EXPECT_EQ(at(options, 110), 0.0);
}

TEST(Schedule, MinLrIsReachedHoweverItIsSaid) {
  const ScheduleOptions rate = options_of("cosine_with_min_lr", {{"min_lr_rate", 0.1}});
  const ScheduleOptions absolute = options_of("cosine_with_min_lr", {{"min_lr", 2e-5}});
  for (std::int64_t step = 10; step <= 110; ++step) {
    const double expected = double(half_cosine((step - 10) / 100.0L) * 0.9L + 0.1L);
    EXPECT_NEAR(at(rate, step), expected, 1e-15);
    EXPECT_NEAR(at(absolute, step), expected, 1e-15);
  }
  EXPECT_NEAR(Schedule(rate).learning_rate(110), 2e-5, 1e-18);
  EXPECT_THROW(Schedule(options_of("cosine_with_min_lr")), Error);
  EXPECT_THROW(Schedule(options_of("cosine_with_min_lr", {{"min_lr", 1e-5}, {"min_lr_rate", 0.1}})), Error);
}

TEST(Schedule, CosineWarmupWithMinLrRunsOneStepAhead) {
  const ScheduleOptions options = options_of("cosine_warmup_with_min_lr", {{"min_lr_rate", 0.2}});
  EXPECT_DOUBLE_EQ(at(options, 0), 0.1);
  EXPECT_DOUBLE_EQ(at(options, 9), 1.0);
  EXPECT_NEAR(at(options, 10), double(half_cosine(0.01L) * 0.8L + 0.2L), 1e-15);
  EXPECT_NEAR(at(options, 109), 0.2, 1e-15);
  const ScheduleOptions raised =
      options_of("cosine_warmup_with_min_lr", {{"min_lr_rate", 0.2}, {"warmup_lr_rate", 0.5}});
  EXPECT_DOUBLE_EQ(at(raised, 0), 0.5);
  EXPECT_DOUBLE_EQ(at(raised, 9), 1.0);
}

TEST(Schedule, PolynomialEndsAtItsEnd) {
  const ScheduleOptions options = options_of("polynomial", {{"lr_end", 2e-5}, {"power", 2.0}});
  EXPECT_NEAR(Schedule(options).learning_rate(60), (2e-4 - 2e-5) * 0.25 + 2e-5, 1e-18);
  EXPECT_NEAR(Schedule(options).learning_rate(110), 2e-5, 1e-18);
  EXPECT_NEAR(Schedule(options).learning_rate(999), 2e-5, 1e-18);
  EXPECT_NEAR(Schedule(options_of("polynomial")).learning_rate(110), 1e-7, 1e-20);
  EXPECT_THROW(Schedule(options_of("polynomial", {{"lr_end", 1.0}})), Error);
}

TEST(Schedule, InverseSqrtHalvesAtFourTimesItsTimescale) {
  EXPECT_DOUBLE_EQ(at(options_of("inverse_sqrt"), 40), 0.5);
  EXPECT_DOUBLE_EQ(at(options_of("inverse_sqrt"), 1000), 0.1);
  ScheduleOptions cold = options_of("inverse_sqrt");
  cold.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(at(cold, 30000), 0.5);
  EXPECT_DOUBLE_EQ(at(options_of("inverse_sqrt", {{"timescale", 50.0}}), 160), 0.5);
}

TEST(Schedule, WarmupStableDecayHasThreePhases) {
  const ScheduleOptions options = options_of(
      "warmup_stable_decay", {{"num_decay_steps", 40.0}, {"decay_type", "linear"}, {"min_lr_ratio", 0.1}});
  EXPECT_DOUBLE_EQ(at(options, 0), 0.1);
  EXPECT_DOUBLE_EQ(at(options, 5), 0.55);
  EXPECT_EQ(at(options, 10), 1.0);
  EXPECT_EQ(at(options, 69), 1.0);
  EXPECT_EQ(at(options, 70), 1.0);
  EXPECT_DOUBLE_EQ(at(options, 90), 0.55);
  EXPECT_EQ(at(options, 110), 0.1);
  const ScheduleOptions root = options_of("warmup_stable_decay", {{"num_stable_steps", 0.0},
                                                                  {"num_decay_steps", 100.0},
                                                                  {"decay_type", "1-sqrt"},
                                                                  {"warmup_type", "1-sqrt"}});
  EXPECT_NEAR(at(root, 35), 0.5, 1e-15);
  EXPECT_NEAR(at(root, 5), 1 - std::sqrt(0.5), 1e-15);
}

TEST(Schedule, WarmupStableDecayIsStableForAThirdUnlessTold) {
  const ScheduleOptions options = options_of("warmup_stable_decay");
  EXPECT_EQ(at(options, 42), 1.0);
  EXPECT_EQ(at(options, 43), 1.0);
  EXPECT_LT(at(options, 44), 1.0);
  EXPECT_NEAR(at(options, 10 + 33 + 67 / 2), double(half_cosine(33 / 67.0L)), 1e-15);
  EXPECT_EQ(at(options, 110), 0.0);
}

TEST(Schedule, DegenerateLengthsStayFinite) {
  for (const std::string& name : schedule_names()) {
    ScheduleOptions options = options_of(name);
    if (name.find("min_lr") != std::string::npos) options.arguments["min_lr_rate"] = 0.5;
    for (const std::int64_t total : {0, 1, 10}) {
      options.total_steps = total;
      for (const std::int64_t step : {0, 1, 9, 10, 11, 1000000}) {
        EXPECT_TRUE(std::isfinite(at(options, step))) << name << " " << total << " " << step;
        EXPECT_GE(at(options, step), 0.0);
      }
    }
  }
}

TEST(Schedule, WhatItDoesNotKnowIsRefused) {
  EXPECT_THROW(Schedule(options_of("cosin")), Error);
  EXPECT_THROW(Schedule(options_of("linear", {{"num_cycles", 2.0}})), Error);
  EXPECT_THROW(Schedule(options_of("cosine", {{"num_cycles", "two"}})), Error);
  EXPECT_THROW(Schedule(options_of("cosine", {{"num_cycles", -1.0}})), Error);
  EXPECT_THROW(Schedule(options_of("cosine", {{"num_cycles", std::nan("")}})), Error);
  EXPECT_THROW(Schedule(options_of("warmup_stable_decay", {{"decay_type", "steep"}})), Error);
  EXPECT_THROW(Schedule(options_of("warmup_stable_decay", {{"num_decay_steps", 1.5}})), Error);
  ScheduleOptions options = options_of("linear");
  options.learning_rate = INFINITY;
  EXPECT_THROW(Schedule{options}, Error);
}

}  // namespace
}  // namespace octet::optim
