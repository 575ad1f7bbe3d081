#include "../src/train/saves/save_interval.h"

#include <gtest/gtest.h>

#include <cmath>

#include "octet/comm/job.h"

namespace octet::train::save_interval_test {
namespace {

constexpr double kHour = 3600;

TEST(SaveInterval, IsThatOfYoungWithDalysHigherOrders) {
  // C = 5 s, M = 3 h: sqrt(2 x 5 x 10800) = 328.6; Daly's factor 1 + sqrt(C / 2M) / 3 + C / 2M / 9
  // is 1.00510.
  EXPECT_NEAR(best_interval(5, 3 * kHour), 328.634 * 1.005097 - 5, 0.01);
  // Beyond twice the time between failures, the interval does not grow.
  EXPECT_DOUBLE_EQ(best_interval(200, 100), 100);
  EXPECT_DOUBLE_EQ(best_interval(1000, 100), 100);
}

TEST(SaveInterval, CostsLessThanItsNeighboursDo) {
  for (const double cost : {0.01, 1.0, 60.0, 600.0}) {
    for (const double mtbf : {kHour, 24 * kHour, 1000 * kHour}) {
      const double best = best_interval(cost, mtbf);
      const double waste = expected_waste(best, cost, mtbf);
      EXPECT_GT(waste, 0);
      EXPECT_LT(waste, 1);
      for (const double factor : {0.5, 0.8, 1.25, 2.0})
        EXPECT_LT(waste, expected_waste(factor * best, cost, mtbf)) << cost << " s, " << mtbf << " s";
    }
  }
  // In first order: C / T + T / 2M.
  EXPECT_NEAR(expected_waste(328, 5, 3 * kHour), 5.0 / 328 + 328.0 / 6 / kHour, 1e-3);
}

TEST(SaveInterval, BeginsEarlyAndThenFollowsWhatWasMeasured) {
  const auto job = comm::make_self_job();
  SaveInterval interval(*job, "checkpoints", 3, 100, 100000);
  for (std::int64_t step = 101; step < 110; ++step) EXPECT_FALSE(interval.is_due(step));
  EXPECT_TRUE(interval.is_due(110));
  interval.stepped(60);  // the first step of a process
  for (int i = 0; i < 9; ++i) interval.stepped(2);
  interval.saved(110, 5);
  const auto steps = static_cast<std::int64_t>(std::round(best_interval(5, 3 * kHour) / 2));
  EXPECT_EQ(steps, 163);
  EXPECT_FALSE(interval.is_due(110 + steps - 1));
  EXPECT_TRUE(interval.is_due(110 + steps));
  // A failed save is retried an interval later. A requested save counts.
  interval.failed(110 + steps);
  EXPECT_FALSE(interval.is_due(110 + 2 * steps - 1));
  interval.saved(300, 5);
  EXPECT_FALSE(interval.is_due(300 + steps - 1));
  EXPECT_TRUE(interval.is_due(300 + steps));
  // One slow save of several changes nothing; several do.
  interval.saved(500, 500);
  EXPECT_TRUE(interval.is_due(500 + steps));
  interval.saved(700, 500);
  interval.saved(900, 500);
  EXPECT_FALSE(interval.is_due(900 + steps));
}

TEST(SaveInterval, NeverSavesMoreThanOnceAStep) {
  const auto job = comm::make_self_job();
  SaveInterval interval(*job, "checkpoints", 1e-9, 0, 100);
  interval.stepped(10);
  interval.saved(10, 1);
  EXPECT_FALSE(interval.is_due(10));
  EXPECT_TRUE(interval.is_due(11));
}

// The latest 64 steps and five saves count. Without a step, a step is assumed to take as long as a save.
TEST(SaveInterval, ForgetsWhatIsLongPast) {
  const auto job = comm::make_self_job();
  const auto steps = [](double cost, double of_step) {
    return static_cast<std::int64_t>(std::round(best_interval(cost, 3 * kHour) / of_step));
  };
  SaveInterval interval(*job, "checkpoints", 3, 0, 1000000);
  interval.saved(0, 5);
  EXPECT_TRUE(interval.is_due(steps(5, 5)));
  EXPECT_FALSE(interval.is_due(steps(5, 5) - 1));
  for (int i = 0; i < 200; ++i) interval.stepped(100);
  for (int i = 0; i < 33; ++i) interval.stepped(2);
  for (int i = 0; i < 9; ++i) interval.saved(1, 500);
  for (int i = 0; i < 3; ++i) interval.saved(1000, 5);
  EXPECT_TRUE(interval.is_due(1000 + steps(5, 2)));
  EXPECT_FALSE(interval.is_due(1000 + steps(5, 2) - 1));
}

}  // namespace
}  // namespace octet::train::save_interval_test
