// Detection of steps with outlying loss or gradient norm.
#include "../src/train/faults/step_guard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::train::spikes_test {
namespace {

store::StepResult step(double loss, double norm = 1) {
  return {.loss_sum = 10 * loss, .label_tokens = 10, .grad_norm = norm};
}

Spikes behind(int steps, const setup::SpikeOptions& options) {
  Spikes spikes(options);
  for (int i = 0; i < steps; ++i) EXPECT_EQ(spikes.look(step(2 + 0.01 * (i % 5), 4)), "") << i;
  return spikes;
}

TEST(Spikes, AreWhatIsMoreThanAFactorTimesTheMedian) {
  Spikes spikes = behind(11, {.loss_factor = 3, .norm_factor = 10});
  EXPECT_DOUBLE_EQ(spikes.limits().loss, 3 * 2.02);
  EXPECT_DOUBLE_EQ(spikes.limits().grad_norm, 40);
  EXPECT_EQ(spikes.look(step(3 * 2.02 - 1e-9)), "");
  EXPECT_EQ(spikes.found(), 0);
  EXPECT_EQ(spikes.look(step(6.2)),
            "its loss of 6.2 is more than 3.0 times the median of the last steps, 2.02");
  EXPECT_EQ(spikes.look(step(2, 40.5)),
            "its gradient norm of 40.5 is more than 10.0 times the median of the last steps, 4.0");
  EXPECT_EQ(spikes.found(), 2);
  EXPECT_EQ(spikes.in_a_row(), 2);
  EXPECT_EQ(spikes.look(step(2)), "");
  EXPECT_EQ(spikes.in_a_row(), 0);
}

TEST(Spikes, WantTenStepsBeforeThem) {
  EXPECT_FALSE(behind(9, {.loss_factor = 2, .norm_factor = 2}).limits().any());
  EXPECT_TRUE(behind(10, {.loss_factor = 2}).limits().any());
  EXPECT_FALSE(behind(50, {}).limits().any()) << "nobody asked for any";
  EXPECT_TRUE(std::isinf(behind(50, {.loss_factor = 2}).limits().grad_norm));
}

TEST(Spikes, AreNoneWhereALevelHasChanged) {
  Spikes spikes = behind(100, {.loss_factor = 2});
  for (int i = 0; i < 51; ++i) EXPECT_NE(spikes.look(step(9)), "") << i;
  EXPECT_EQ(spikes.look(step(9)), "") << "most of the last hundred steps are so";
}

TEST(Spikes, WhatIsNotFiniteIsLeftOutOfTheMedian) {
  Spikes spikes = behind(10, {.loss_factor = 2, .norm_factor = 2});
  const double limit = spikes.limits().loss;
  for (int i = 0; i < 10; ++i) spikes.look(step(NAN, NAN));
  spikes.look({.label_tokens = 0});
  EXPECT_EQ(spikes.limits().loss, limit);
  EXPECT_EQ(spikes.found(), 0) << "these are told of elsewhere";
  EXPECT_NE(spikes.look(step(INFINITY)), "");
}

TEST(Spikes, TheStoreIsToldLimitsWhereTheyAreSkipped) {
  using enum setup::SpikeAction;
  EXPECT_TRUE(behind(20, {.loss_factor = 2, .action = skip}).limits_of_update().any());
  EXPECT_FALSE(behind(20, {.loss_factor = 2, .action = rollback}).limits_of_update().any());
  EXPECT_FALSE(behind(20, {.loss_factor = 2, .action = stop}).limits_of_update().any());
}

TEST(Spikes, ARunThatGoesOnJudgesAlike) {
  const setup::SpikeOptions options{.loss_factor = 2, .norm_factor = 3};
  Spikes before = behind(37, options);
  before.look(step(7.3, 1.0 / 3));
  const Json state = parse_json(before.state().dump(), "state");
  Spikes after(options);
  after.restore(state, "here");
  EXPECT_EQ(after.state(), before.state());
  EXPECT_EQ(after.limits().loss, before.limits().loss) << "to the last bit";
  EXPECT_EQ(after.found(), 1);
  EXPECT_EQ(after.in_a_row(), 1);
  after.restore(nullptr, "here");
  EXPECT_FALSE(after.limits().any());
  EXPECT_TRUE(Spikes({}).state().is_null());
}

TEST(Spikes, AStateThatNoneWroteIsRefused) {
  for (const char* text :
       {R"({"losses": 3, "grad_norms": []})", R"({"losses": [1]})", R"({"losses": ["a"], "grad_norms": []})",
        R"({"losses": [], "grad_norms": [], "found": -1})"}) {
    Spikes spikes({.loss_factor = 2});
    EXPECT_THROW(spikes.restore(parse_json(text, "state"), "checkpoint-3"), Error) << text;
  }
}

}  // namespace
}  // namespace octet::train::spikes_test
