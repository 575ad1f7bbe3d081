#include "octet/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "octet/base/error.h"

namespace octet::optim::schedule_test {
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
  const ScheduleOptions wave = options_of("warmup_stable_decay", {{"warmup_type", "cosine"}});
  for (const std::int64_t step : {0, 1, 4, 9}) {
    EXPECT_NEAR(at(wave, step), double(1 - half_cosine(static_cast<long double>(step) / 10)), 1e-15) << step;
  }
}

TEST(Schedule, OneStepAfterTheWarmUpIsAWholeCourse) {
  for (const char* name : {"linear", "cosine"}) {
    ScheduleOptions options = options_of(name);
    options.total_steps = 11;
    EXPECT_EQ(at(options, 10), 1.0) << name;
    EXPECT_EQ(at(options, 11), 0.0) << name;
  }
}

TEST(Schedule, WarmupStableDecayIsStableForAThirdUnlessTold) {
  const ScheduleOptions options = options_of("warmup_stable_decay");
  EXPECT_EQ(at(options, 42), 1.0);
  EXPECT_EQ(at(options, 43), 1.0);
  EXPECT_LT(at(options, 44), 1.0);
  EXPECT_NEAR(at(options, 10 + 33 + 67 / 2), double(half_cosine(33 / 67.0L)), 1e-15);
  EXPECT_EQ(at(options, 110), 0.0);
}

// transformers.optimization (5.x): _get_cosine_with_min_lr_schedule_with_warmup_lr_rate_lambda and
// _get_wsd_scheduler_lambda, from the mathematics in long double at every step of runs of several shapes.
TEST(Schedule, CosineWarmupWithMinLrIsThatOfTransformersAtEveryStep) {
  const long double pi = std::acos(-1.0L);
  for (const std::int64_t warmup : {0, 1, 2, 10}) {
    for (const double cycles : {0.5, 1.25}) {
      for (const double start : {-1.0, 0.0, 0.3}) {
        ScheduleOptions options =
            options_of("cosine_warmup_with_min_lr", {{"min_lr", 3e-5}, {"num_cycles", cycles}});
        options.warmup_steps = warmup;
        if (start >= 0) options.arguments["warmup_lr_rate"] = start;
        const long double floor = 3e-5L / 2e-4L, w = warmup, span = 110 - w;
        for (std::int64_t step = 0; step < 110; ++step) {
          long double expected = 0;
          if (step < warmup && start < 0) {
            expected = (step + 1) / w;
          } else if (step < warmup) {
            expected = start + (1 - static_cast<long double>(start)) * step / std::max(1.0L, w - 1);
          } else {
            const long double wave = (1 + std::cos(2 * pi * cycles * (step - w + 1) / span)) / 2;
            expected = wave * (1 - floor) + floor;
          }
          EXPECT_NEAR(at(options, step), double(expected), 1e-14) << warmup << " " << start << " " << step;
        }
      }
    }
  }
}

TEST(Schedule, WarmupStableDecayIsThatOfTransformersAtEveryStep) {
  const long double pi = std::acos(-1.0L);
  // Without counts: a third of the 100 steps after the warm-up is stable, the rest decays by a cosine.
  for (const double floor : {0.0, 0.2}) {
    const ScheduleOptions options = options_of("warmup_stable_decay", {{"min_lr_ratio", floor}});
    for (std::int64_t step = 0; step <= 115; ++step) {
      long double share = 0;
      if (step < 10) {
        share = step / 10.0L;
      } else if (step < 43) {
        share = 1;
      } else if (step < 110) {
        share = (1 + std::cos(pi * (step - 43) / 67.0L)) / 2;
      }
      const double expected = double(share * (1 - static_cast<long double>(floor)) + floor);
      EXPECT_NEAR(at(options, step), expected, 1e-14) << step;
    }
  }
  // With the length of the decay alone the rest is stable.
  const ScheduleOptions counted = options_of("warmup_stable_decay", {{"num_decay_steps", 30.0}});
  for (std::int64_t step = 10; step < 110; ++step) {
    const double expected = step < 80 ? 1 : double((1 + std::cos(pi * (step - 80) / 30.0L)) / 2);
    EXPECT_NEAR(at(counted, step), expected, 1e-14) << step;
  }
  const ScheduleOptions waves =
      options_of("warmup_stable_decay", {{"num_decay_steps", 30.0}, {"num_cycles", 1.25}});
  for (std::int64_t step = 80; step < 110; ++step) {
    const long double share = (1 + std::cos(2 * pi * 1.25L * (step - 80) / 30)) / 2;
    EXPECT_NEAR(at(waves, step), double(share), 1e-14) << step;
  }
}

/// What deepspeed/runtime/lr_schedules.py (2026-08) gives an optimizer of rate 2e-4, a step of the schedule
/// after each update.
struct DeepSpeedCase {
  const char* what;
  ScheduleOptions options;
  std::vector<double> rates;  ///< of the updates in kUpdates
};
constexpr std::int64_t kUpdates[] = {0, 1, 2, 3, 6, 7, 8, 9, 15, 20, 21, 22, 30};

ScheduleOptions deepspeed(const std::string& name, std::int64_t warmup, ScheduleArguments arguments,
                          std::int64_t total = 20) {
  return {.name = name,
          .learning_rate = 2e-4,
          .warmup_steps = warmup,
          .total_steps = total,
          .arguments = std::move(arguments)};
}

TEST(Schedule, ThoseOfDeepSpeedGiveItsRates) {
  const std::vector<DeepSpeedCase> cases{
      {"WarmupLR, log",
       deepspeed("deepspeed_warmup", 7, {{"warmup_min_lr", 1e-5}}),
       {1e-05, 1e-05, 7.767936555052422e-05, 0.00011726925647018014, 0.00018494862202070436, 0.0002, 0.0002,
        0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002}},
      {"WarmupLR, linear",
       deepspeed("deepspeed_warmup", 7, {{"warmup_type", "linear"}}),
       {0.0, 0.0, 2.857142857142857e-05, 5.714285714285714e-05, 0.00014285714285714287,
        0.00017142857142857143, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002}},
      {"WarmupLR of one step, which counts as two",
       deepspeed("deepspeed_warmup", 1, {}),
       {0.0, 0.0, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002, 0.0002}},
      {"WarmupDecayLR, log",
       deepspeed("deepspeed_warmup_decay", 7, {{"warmup_type", "log"}, {"warmup_min_lr", 1e-5}}),
       {1e-05, 1e-05, 7.767936555052422e-05, 0.00011726925647018014, 0.00018494862202070436, 0.0002, 0.0002,
        0.00018538461538461542, 9.769230769230771e-05, 2.461538461538462e-05, 1e-05, 1e-05, 1e-05}},
      {"WarmupDecayLR, linear, of a length of its own",
       deepspeed("deepspeed_warmup_decay", 7, {{"warmup_type", "linear"}, {"total_num_steps", 20.0}}, 31),
       {0.0, 0.0, 2.857142857142857e-05, 5.714285714285714e-05, 0.00014285714285714287,
        0.00017142857142857143, 0.0002, 0.00018461538461538463, 9.230769230769232e-05, 1.5384615384615387e-05,
        0.0, 0.0, 0.0}},
      {"WarmupCosineLR, log",
       deepspeed("deepspeed_warmup_cosine", 7, {}),
       {0.0, 0.0, 7.124143742160444e-05, 0.00011291500681071594, 0.00018415644423232038, 0.0002,
        0.00019709447232443096, 0.00018854674800506446, 6.455305734461687e-05, 2e-08, 2e-08, 2e-08, 2e-08}},
      {"WarmupCosineLR, linear",
       deepspeed("deepspeed_warmup_cosine", 7,
                 {{"warmup_type", "linear"}, {"warmup_min_ratio", 0.1}, {"cos_min_ratio", 0.25}}),
       {0.0, 2e-05, 4.5714285714285716e-05, 7.142857142857142e-05, 0.00014857142857142857,
        0.00017428571428571428, 0.0001978206363069539, 0.00019140920192399074, 9.840463347180983e-05, 5e-05,
        5e-05, 5e-05, 5e-05}},
  };
  for (const DeepSpeedCase& c : cases) {
    const Schedule schedule(c.options);
    for (std::size_t i = 0; i < c.rates.size(); ++i)
      EXPECT_NEAR(schedule.learning_rate(kUpdates[i]), c.rates[i], 1e-18)
          << c.what << ", update " << kUpdates[i];
  }
  EXPECT_THROW(Schedule(deepspeed("deepspeed_warmup", 7, {{"warmup_type", "cosine"}})), Error);
  EXPECT_THROW(Schedule(deepspeed("deepspeed_warmup", 7, {{"warmup_min_lr", 1.0}})), Error);
  EXPECT_THROW(Schedule(deepspeed("deepspeed_warmup", 7, {{"total_num_steps", 9.0}})), Error);
  EXPECT_THROW(Schedule(deepspeed("deepspeed_warmth", 7, {})), Error);
}

// Each argument at the ends of its range, and just outside of them.
TEST(Schedule, ArgumentsMayReachTheEndsOfTheirRangesAndNoFurther) {
  struct Case {
    const char* name;
    const char* key;
    double low, high;
    ScheduleArguments with = {};
  };
  const ScheduleArguments floor{{"min_lr_rate", 0.5}};
  for (const Case& c : {Case{"cosine", "num_cycles", 0, 1e6},
                        {"cosine_with_restarts", "num_cycles", 0, 9007199254740992.0},
                        {"cosine_with_min_lr", "min_lr", 0, 2e-4},
                        {"cosine_with_min_lr", "min_lr_rate", 0, 1},
                        {"cosine_with_min_lr", "num_cycles", 0, 1e6, floor},
                        {"cosine_warmup_with_min_lr", "min_lr", 0, 2e-4},
                        {"cosine_warmup_with_min_lr", "warmup_lr_rate", 0, 1, floor},
                        {"polynomial", "power", 0, 1e6},
                        {"inverse_sqrt", "timescale", 1, 9007199254740992.0},
                        {"warmup_stable_decay", "min_lr_ratio", 0, 1},
                        {"warmup_stable_decay", "num_cycles", 0, 1e6},
                        {"warmup_stable_decay", "num_decay_steps", 0, 9007199254740992.0},
                        {"deepspeed_warmup", "warmup_min_lr", 0, 2e-4},
                        {"deepspeed_warmup_decay", "warmup_min_lr", 0, 2e-4},
                        {"deepspeed_warmup_decay", "total_num_steps", 0, 9007199254740992.0},
                        {"deepspeed_warmup_cosine", "warmup_min_ratio", 0, 1},
                        {"deepspeed_warmup_cosine", "cos_min_ratio", 0, 1}}) {
    const auto with = [&](double value) {
      ScheduleArguments arguments = c.with;
      arguments[c.key] = value;
      return options_of(c.name, arguments);
    };
    EXPECT_NO_THROW(Schedule(with(c.low))) << c.name << " " << c.key;
    EXPECT_NO_THROW(Schedule(with(c.high))) << c.name << " " << c.key;
    for (const double outside : {c.low - 1, c.low - 1e-9, c.high * 1.001, c.high * 2}) {
      try {
        const Schedule schedule(with(outside));
        ADD_FAILURE() << c.name << " " << c.key << " " << outside;
      } catch (const Error& e) {
        EXPECT_EQ(e.problem().where, std::string("lr_scheduler_kwargs.") + c.key);
        EXPECT_EQ(e.code(), ExitCode::usage);
      }
    }
  }
  EXPECT_NO_THROW(Schedule(options_of("polynomial", {{"lr_end", 1.99e-4}})));
  EXPECT_THROW(Schedule(options_of("polynomial", {{"lr_end", 2e-4}})), Error)
      << "it is not below the first rate";
  EXPECT_THROW(Schedule(options_of("cosine_with_min_lr")), Error);
  EXPECT_THROW(Schedule(options_of("cosine_with_min_lr", {{"min_lr", 0.0}, {"min_lr_rate", 0.0}})), Error);
  const auto refused = [](const std::function<void(ScheduleOptions&)>& change) -> std::string {
    ScheduleOptions options = options_of("linear");
    change(options);
    try {
      const Schedule schedule(options);
    } catch (const Error& e) {
      return e.problem().where;
    }
    return "";
  };
  using O = ScheduleOptions;
  EXPECT_EQ(refused([](O& o) { o.learning_rate = 0, o.warmup_steps = 0, o.total_steps = 0; }), "");
  EXPECT_EQ(refused([](O& o) { o.learning_rate = -1e-9; }), "learning_rate");
  EXPECT_EQ(refused([](O& o) { o.learning_rate = std::nan(""); }), "learning_rate");
  EXPECT_EQ(refused([](O& o) { o.warmup_steps = -1; }), "warmup_steps");
  EXPECT_EQ(refused([](O& o) { o.total_steps = -1; }), "max_steps");
}

TEST(Schedule, ADecayOfNoStepsIsAtItsEndAtOnce) {
  const auto options = options_of(
      "warmup_stable_decay", {{"num_decay_steps", 0.0}, {"num_stable_steps", 20.0}, {"min_lr_ratio", 0.25}});
  EXPECT_EQ(at(options, 29), 1.0);
  EXPECT_EQ(at(options, 30), 0.25);
}

// The default of each argument: written out, it gives the same rates; another value gives other rates.
TEST(Schedule, ArgumentsThatAreNotGivenHaveTheirDefaults) {
  struct Case {
    const char* name;
    const char* key;
    std::variant<double, std::string> usual, other;
    ScheduleArguments with = {};
    std::int64_t warmup = 10;
  };
  const ScheduleArguments floor{{"min_lr_rate", 0.25}};
  const std::vector<Case> cases{
      {"cosine", "num_cycles", 0.5, 1.5},
      {"cosine_with_restarts", "num_cycles", 1.0, 2.0},
      {"cosine_with_min_lr", "num_cycles", 0.5, 1.5, floor},
      {"cosine_warmup_with_min_lr", "num_cycles", 0.5, 1.5, floor},
      {"polynomial", "lr_end", 1e-7, 2e-7},
      {"polynomial", "power", 1.0, 2.0},
      {"inverse_sqrt", "timescale", 10.0, 11.0},
      {"inverse_sqrt", "timescale", 10000.0, 9999.0, {}, 0},
      {"inverse_sqrt", "timescale", 1.0, 10000.0, {}, 1},
      {"warmup_stable_decay", "num_stable_steps", 33.0, 34.0},
      {"warmup_stable_decay", "num_stable_steps", 80.0, 79.0, {{"num_decay_steps", 20.0}}},
      {"warmup_stable_decay", "num_decay_steps", 67.0, 50.0, {{"num_stable_steps", 33.0}}},
      {"warmup_stable_decay", "warmup_type", "linear", "cosine"},
      {"warmup_stable_decay", "decay_type", "cosine", "linear"},
      {"warmup_stable_decay", "min_lr_ratio", 0.0, 0.1},
      {"warmup_stable_decay", "num_cycles", 0.5, 1.0},
      {"deepspeed_warmup", "warmup_min_lr", 0.0, 1e-5},
      {"deepspeed_warmup", "warmup_type", "log", "linear"},
      {"deepspeed_warmup_decay", "warmup_min_lr", 0.0, 1e-5},
      {"deepspeed_warmup_decay", "total_num_steps", 110.0, 111.0},
      {"deepspeed_warmup_cosine", "warmup_min_ratio", 0.0, 0.1},
      {"deepspeed_warmup_cosine", "cos_min_ratio", 0.0001, 0.0002},
      {"deepspeed_warmup_cosine", "total_num_steps", 110.0, 100.0},
      {"deepspeed_warmup_cosine", "warmup_type", "log", "linear"}};
  for (const Case& c : cases) {
    const auto rates = [&](const std::variant<double, std::string>* value) {
      ScheduleOptions options = options_of(c.name, c.with);
      options.warmup_steps = c.warmup;
      if (value != nullptr) options.arguments[c.key] = *value;
      std::vector<double> all;
      for (std::int64_t step = 0; step <= 130; ++step) all.push_back(at(options, step));
      return all;
    };
    EXPECT_EQ(rates(nullptr), rates(&c.usual)) << c.name << " " << c.key;
    EXPECT_NE(rates(nullptr), rates(&c.other)) << c.name << " " << c.key;
  }
  // Two steps of warm-up are the fewest that DeepSpeed knows.
  for (const std::int64_t few : {0, 1, 2}) {
    ScheduleOptions options = options_of("deepspeed_warmup");
    options.warmup_steps = few;
    EXPECT_EQ(at(options, 2), 1.0);
    EXPECT_EQ(at(options, 1), 0.0);
  }
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
}  // namespace octet::optim::schedule_test
