// Keys of the checks for silent errors: refused values and their messages.
#include "config/support.h"

namespace octet::config::test::checks_test {
namespace {

TEST(CheckRules, AFactorLeavesOrdinarySteps) {
  for (const char* key : {"loss_spike_factor", "grad_norm_spike_factor"}) {
    EXPECT_NO_THROW(read(std::string(key) + ": 0"));
    EXPECT_NO_THROW(read(std::string(key) + ": 1.5"));
    for (const char* value : {"1", "0.5"}) {
      const std::string message = refusal(std::string(key) + ": " + value);
      EXPECT_SAYS(message, std::string("value of '") + key + "' cannot be used");
      EXPECT_SAYS(message, "a number above 1");
    }
    EXPECT_SAYS(refusal(std::string(key) + ": -2"), key);
    EXPECT_SAYS(refusal(std::string(key) + ": .nan"), key);
  }
}

TEST(CheckRules, NumbersOfStepsAreNotNegative) {
  EXPECT_SAYS(refusal("sdc_steps: -1"), "sdc_steps");
  EXPECT_SAYS(refusal("sdc_steps: 10\nsdc_replay_steps: -5"), "sdc_replay_steps");
  EXPECT_SAYS(refusal("sdc_steps: often"), "sdc_steps");
}

TEST(CheckRules, ReplaysNeedChecksAndTheSameBitsOnEveryRank) {
  EXPECT_NO_THROW(read("sdc_steps: 10\nsdc_replay_steps: 20"));
  EXPECT_NO_THROW(read("sdc_steps: 10\nsdc_replay_steps: 20\ndevice: cuda\ndeterministic: strict"));
  EXPECT_SAYS(refusal("sdc_replay_steps: 20"), "'sdc_replay_steps' needs 'sdc_steps'");
  EXPECT_SAYS(refusal("sdc_steps: 10\nsdc_replay_steps: 20\ndeterministic: false"), "exclude each other");
  const std::string message = refusal("sdc_steps: 10\nsdc_replay_steps: 20\ndevice: cuda");
  EXPECT_SAYS(message, "with 'device: cuda'");
  EXPECT_SAYS(message, "set deterministic: strict");
}

TEST(CheckRules, GoingBackNeedsCheckpoints) {
  EXPECT_SAYS(refusal("sdc_steps: 10\nsdc_action: rollback\nsave_strategy: no"),
              "checkpoints, to which the run can return");
  EXPECT_SAYS(refusal("spike_action: rollback\nsave_strategy: no"), "spike_action: stop");
  EXPECT_NO_THROW(read("sdc_steps: 10\nsdc_action: rollback\nspike_action: rollback"));
  EXPECT_SAYS(refusal("spike_action: ignore"), "spike_action");
  EXPECT_SAYS(refusal("sdc_action: skip"), "sdc_action");
}

TEST(CheckRules, AnActionWithoutChecksIsToldOf) {
  const Resolved alone = read("sdc_action: rollback");
  EXPECT_SAYS(alone.notes.back(), "is read only with sdc_steps");
}

}  // namespace
}  // namespace octet::config::test::checks_test
