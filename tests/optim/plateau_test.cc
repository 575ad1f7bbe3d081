// reduce_lr_on_plateau against torch.optim.lr_scheduler.ReduceLROnPlateau.
#include "octet/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"

namespace octet::optim::plateau_test {
namespace {

using Values = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kPeak = 2e-4;

const Values kFalling = {3.0,  2.5,     2.4999, 2.4,    2.4, 2.45, 2.3999, 2.39, 2.2, 2.25, 2.2, 2.3,
                         2.21, 2.19995, 2.4,    2.1995, 2.1, 2.2,  2.15,   2.12, 2.1, 2.11, 2.0, 2.05};

ScheduleOptions options_of(ScheduleArguments arguments) {
  return {.name = "reduce_lr_on_plateau",
          .learning_rate = kPeak,
          .warmup_steps = 10,
          .total_steps = 110,
          .arguments = std::move(arguments)};
}

/// The learning rate after each value.
Values rates(const ScheduleArguments& arguments, const Values& values) {
  Schedule schedule(options_of(arguments));
  Values all;
  for (const double value : values) {
    schedule.plateau()->take(value);
    all.push_back(schedule.learning_rate(0));
  }
  return all;
}

/// A rate as often as it follows itself.
using Spans = std::vector<std::pair<double, int>>;

Spans spans_of(const Values& rates) {
  Spans spans;
  for (const double rate : rates) {
    if (spans.empty() || spans.back().first != rate) spans.emplace_back(rate, 0);
    ++spans.back().second;
  }
  return spans;
}

struct Row {
  const char* name;
  ScheduleArguments arguments;
  Values values;
  Spans expected;
};

Values negated(Values values) {
  for (double& value : values) value = 5 - value;
  return values;
}

Values joined(Values values, std::size_t more, double value) {
  values.insert(values.end(), more, value);
  return values;
}

// Results of torch's class, computed in Python's doubles; equal to the last bit. Any two rows that differ in
// one argument have different results.
TEST(Plateau, IsThatOfTorchToTheLastBit) {
  const Row rows[] = {
      {"defaults", {}, joined(kFalling, 14, 2.1), {{0.0002, 33}, {2e-05, 5}}},
      {"patience",
       {{"patience", 2.0}},
       kFalling,
       {{0.0002, 6},
        {2e-05, 5},
        {2.0000000000000003e-06, 3},
        {2.0000000000000004e-07, 5},
        {2.0000000000000007e-08, 5}}},
      {"factor",
       {{"patience", 2.0}, {"factor", 0.5}},
       kFalling,
       {{0.0002, 6}, {0.0001, 5}, {5e-05, 3}, {2.5e-05, 5}, {1.25e-05, 5}}},
      {"threshold",
       {{"patience", 2.0}, {"factor", 0.5}, {"threshold", 0.05}},
       kFalling,
       {{0.0002, 4}, {0.0001, 3}, {5e-05, 4}, {2.5e-05, 3}, {1.25e-05, 3}, {6.25e-06, 3}, {3.125e-06, 4}}},
      {"threshold_mode",
       {{"patience", 2.0}, {"factor", 0.5}, {"threshold", 0.15}, {"threshold_mode", "abs"}},
       kFalling,
       {{0.0002, 4}, {0.0001, 3}, {5e-05, 4}, {2.5e-05, 3}, {1.25e-05, 3}, {6.25e-06, 3}, {3.125e-06, 4}}},
      {"cooldown",
       {{"patience", 2.0}, {"factor", 0.5}, {"cooldown", 3.0}},
       kFalling,
       {{0.0002, 6}, {0.0001, 6}, {5e-05, 7}, {2.5e-05, 5}}},
      {"min_lr",
       {{"patience", 2.0}, {"factor", 0.5}, {"min_lr", 3e-05}},
       kFalling,
       {{0.0002, 6}, {0.0001, 5}, {5e-05, 3}, {3e-05, 10}}},
      {"eps",
       {{"patience", 2.0}, {"factor", 0.5}, {"eps", 3e-05}},
       kFalling,
       {{0.0002, 6}, {0.0001, 5}, {5e-05, 13}}},
      {"mode",
       {{"patience", 2.0}, {"factor", 0.5}, {"mode", "max"}},
       kFalling,
       {{0.0002, 3},
        {0.0001, 3},
        {5e-05, 3},
        {2.5e-05, 3},
        {1.25e-05, 3},
        {6.25e-06, 3},
        {3.125e-06, 3},
        {1.5625e-06, 3}}},
      {"mode of rising values",
       {{"patience", 2.0}, {"factor", 0.5}, {"mode", "max"}},
       negated(kFalling),
       {{0.0002, 6}, {0.0001, 5}, {5e-05, 3}, {2.5e-05, 5}, {1.25e-05, 5}}},
      {"threshold of rising values",
       {{"patience", 2.0}, {"factor", 0.5}, {"mode", "max"}, {"threshold", 0.05}},
       negated(kFalling),
       {{0.0002, 4}, {0.0001, 3}, {5e-05, 4}, {2.5e-05, 3}, {1.25e-05, 3}, {6.25e-06, 3}, {3.125e-06, 4}}},
      {"threshold_mode of rising values",
       {{"patience", 2.0}, {"factor", 0.5}, {"mode", "max"}, {"threshold", 0.15}, {"threshold_mode", "abs"}},
       negated(kFalling),
       {{0.0002, 4}, {0.0001, 3}, {5e-05, 4}, {2.5e-05, 3}, {1.25e-05, 3}, {6.25e-06, 3}, {3.125e-06, 4}}},
      {"a third at a time",
       {{"patience", 0.0}, {"factor", 0.3}},
       kFalling,
       {{0.0002, 2},
        {6e-05, 2},
        {1.8e-05, 1},
        {5.4e-06, 1},
        {1.62e-06, 3},
        {4.86e-07, 1},
        {1.458e-07, 1},
        {4.374e-08, 1},
        {1.3122e-08, 12}}},
      {"not finite",
       {{"patience", 0.0}, {"factor", 0.5}},
       {3.0, kNan, kInfinity, 2.0, kNan, kNan, kNan, 1.0},
       {{0.0002, 1}, {0.0001, 1}, {5e-05, 2}, {2.5e-05, 1}, {1.25e-05, 1}, {6.25e-06, 2}}},
      {"not finite, mode max",
       {{"patience", 0.0}, {"factor", 0.5}, {"mode", "max"}},
       {3.0, kNan, kInfinity, 2.0, kNan, kNan, kNan, 1.0},
       {{0.0002, 1}, {0.0001, 2}, {5e-05, 1}, {2.5e-05, 1}, {1.25e-05, 1}, {6.25e-06, 1}, {3.125e-06, 1}}},
  };
  for (const Row& row : rows) EXPECT_EQ(spans_of(rates(row.arguments, row.values)), row.expected) << row.name;
}

TEST(Plateau, KnowsNeitherTheStepNorAWarmUp) {
  Schedule schedule(options_of({{"patience", 0.0}}));
  for (const std::int64_t step : {0, 1, 9, 10, 500}) EXPECT_EQ(schedule.learning_rate(step), kPeak);
  schedule.plateau()->take(1.0), schedule.plateau()->take(1.0);
  for (const std::int64_t step : {0, 9, 500}) EXPECT_EQ(schedule.learning_rate(step), kPeak * 0.1);
  EXPECT_EQ(schedule.factor(7), kPeak * 0.1 / kPeak);
  EXPECT_EQ(Schedule({.name = "linear"}).plateau(), nullptr);
}

TEST(Plateau, SaysWhenTheRateFalls) {
  Plateau plateau(1.0, {.factor = 0.5, .patience = 0, .min_lr = 0.25});
  EXPECT_FALSE(plateau.take(1.0));
  EXPECT_TRUE(plateau.take(1.0));
  EXPECT_TRUE(plateau.take(1.0));
  EXPECT_FALSE(plateau.take(1.0)) << "min_lr is reached";
  EXPECT_EQ(plateau.learning_rate(), 0.25);
}

TEST(Plateau, GoesOnFromEveryStateAsIfItHadNotStopped) {
  for (const PlateauOptions& options :
       {PlateauOptions{.factor = 0.3, .patience = 1, .cooldown = 2},
        PlateauOptions{.mode = "max", .patience = 2},
        PlateauOptions{.factor = 0.7, .patience = 0, .threshold = 0.05, .threshold_mode = "abs"}}) {
    for (std::size_t stop = 0; stop <= kFalling.size(); ++stop) {
      Plateau whole(kPeak, options), first(kPeak, options), second(kPeak, options);
      for (std::size_t i = 0; i < kFalling.size(); ++i) {
        if (i == stop) second.restore(first.state());
        whole.take(kFalling[i]);
        (i < stop ? first : second).take(kFalling[i]);
        ASSERT_EQ((i < stop ? first : second).learning_rate(), whole.learning_rate()) << stop << " " << i;
      }
    }
  }
}

TEST(Plateau, TakesOverWhatItCanFromARunWithOtherSettings) {
  Plateau before(kPeak, {.patience = 0});
  before.take(1.0), before.take(1.0);
  Plateau faster(2 * kPeak, {.patience = 0});
  faster.restore(before.state());
  EXPECT_DOUBLE_EQ(faster.learning_rate(), 2 * kPeak * 0.1);
  Plateau still(0.0, {});
  still.restore(before.state());
  EXPECT_EQ(still.learning_rate(), 0.0);
  // From no rate at all there is no ratio.
  Plateau moved(kPeak, {});
  moved.restore(still.state());
  EXPECT_EQ(moved.learning_rate(), kPeak);
  Plateau other(kPeak, {.mode = "max", .patience = 0});
  other.restore(before.state());
  EXPECT_EQ(other.state().best, -kInfinity);
  EXPECT_FALSE(other.take(0.5)) << "the first value of its mode";
  EXPECT_TRUE(other.take(0.4));
}

TEST(Plateau, RefusesWhatTorchCannotUse) {
  const ScheduleArguments wrong[] = {{{"factor", 1.0}},         {{"mode", "least"}}, {{"mode", 1.0}},
                                     {{"threshold_mode", "x"}}, {{"patience", 1.5}}, {{"cooldown", -1.0}},
                                     {{"threshold", "x"}},      {{"min_lr", -1e-9}}, {{"eps", -1.0}},
                                     {{"verbose", 1.0}}};
  for (const ScheduleArguments& arguments : wrong)
    EXPECT_THROW(Schedule(options_of(arguments)), Error) << arguments.begin()->first;
}

}  // namespace
}  // namespace octet::optim::plateau_test
