// The steps after which a run saves and evaluates.
#include "../src/train/evaluations.h"

#include <gtest/gtest.h>

#include <vector>

namespace octet::train::due_steps_test {
namespace {

using setup::When;
using Steps = std::vector<std::int64_t>;

constexpr std::int64_t kTotal = 10;

/// Returns the due steps of a run with epochs of 4 steps.
Steps due(const Turn& turn) {
  Steps steps;
  for (std::int64_t step = 1; step <= kTotal; ++step) {
    if (is_turn(turn, step, kTotal, step % 4 == 0)) steps.push_back(step);
  }
  return steps;
}

Steps planned(const Turn& turn, std::int64_t epoch) {
  Steps steps;
  for (std::int64_t step = 1; step <= kTotal; ++step) {
    if (is_planned(turn, step, kTotal, epoch)) steps.push_back(step);
  }
  return steps;
}

TEST(DueSteps, FollowTheIntervalOrTheEpoch) {
  struct Case {
    const char* what;
    Turn turn;
    Steps steps;
  };
  const std::vector<Case> cases = {
      {"every 3 steps", {When::steps, 3}, {3, 6, 9}},
      {"a share of all steps", {When::steps, 0.5}, {5, 10}},
      {"a share that is rounded up", {When::steps, 0.25}, {3, 6, 9}},
      {"longer than the run", {When::steps, 100}, {}},
      {"the interval does not count for epochs", {When::epoch, 3}, {4, 8}},
      {"never", {When::never, 1}, {}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(due(c.turn), c.steps) << c.what;
    EXPECT_EQ(planned(c.turn, 4), c.steps) << c.what;
  }
}

TEST(DueSteps, PlanNoEpochOfUnknownLength) {
  EXPECT_EQ(planned({When::epoch, 3}, 0), Steps{});
  EXPECT_EQ(planned({When::steps, 3}, 0), (Steps{3, 6, 9}));
}

}  // namespace
}  // namespace octet::train::due_steps_test
