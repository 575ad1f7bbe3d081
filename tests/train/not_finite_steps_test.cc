// The count of steps with a loss or gradient that is not finite.
#include "../src/train/faults/step_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::train::not_finite_steps_test {
namespace {

constexpr store::StepResult kGood{.loss_sum = 20, .label_tokens = 10, .grad_norm = 1};
constexpr store::StepResult kSkipped{.loss_sum = 20, .label_tokens = 10, .skipped = true};

TEST(NotFiniteSteps, AreStepsWithoutAFiniteLossOrGradient) {
  struct Case {
    const char* what;
    store::StepResult result;
    bool spike, finite;
  };
  const std::vector<Case> cases = {
      {"an ordinary step", kGood, false, true},
      {"a skipped step", kSkipped, false, false},
      {"a step without label tokens", {.loss_sum = 0, .label_tokens = 0, .skipped = true}, false, true},
      {"a loss that is not a number", {.loss_sum = NAN, .label_tokens = 10}, false, false},
      {"an infinite loss", {.loss_sum = INFINITY, .label_tokens = 10}, false, false},
      {"a spike that was skipped", kSkipped, true, true},
  };
  for (const Case& c : cases) {
    NotFiniteSteps steps;
    EXPECT_EQ(steps.add(c.result, c.spike), c.finite) << c.what;
    EXPECT_EQ(steps.in_a_row(), c.finite ? 0 : 1) << c.what;
  }
}

TEST(NotFiniteSteps, AreTooManyAfterFiveInARow) {
  NotFiniteSteps steps;
  for (int i = 1; i < 5; ++i) steps.add(kSkipped, false);
  EXPECT_FALSE(steps.too_many());
  steps.add(kGood, false);
  EXPECT_EQ(steps.in_a_row(), 0);
  for (int i = 1; i < 5; ++i) steps.add(kSkipped, false);
  EXPECT_FALSE(steps.too_many());
  steps.add(kSkipped, false);
  EXPECT_TRUE(steps.too_many());
}

TEST(NotFiniteSteps, ContinueAfterARestart) {
  NotFiniteSteps steps;
  steps.restore(Json{{"not_finite_in_a_row", 4}}, "checkpoint-8");
  EXPECT_FALSE(steps.too_many());
  steps.add(kSkipped, false);
  EXPECT_TRUE(steps.too_many());
  steps.restore(Json::object(), "checkpoint-8");
  EXPECT_EQ(steps.in_a_row(), 0);
  // A run with five in a row has failed and saves no checkpoint.
  EXPECT_THROW(steps.restore(Json{{"not_finite_in_a_row", 5}}, "checkpoint-8"), Error);
}

}  // namespace
}  // namespace octet::train::not_finite_steps_test
