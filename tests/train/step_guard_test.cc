// Reactions of a run to spikes and to steps that are not finite. Checks of bits need an engine.
#include "../src/train/faults/step_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/config/config.h"
#include "train/run_objects.h"

namespace octet::train::step_guard_test {
namespace {

using run_objects::BareRun;

constexpr store::StepResult kGood{.loss_sum = 20, .label_tokens = 10, .grad_norm = 1};
constexpr store::StepResult kNotANumber{.loss_sum = NAN, .label_tokens = 10, .grad_norm = 1};

/// The guard of a run without an engine.
class GuardedRun : public BareRun {
 public:
  explicit GuardedRun(const char* action) : BareRun(with(action)) {
    saves_.open();
    saves_.begin();
    guard_.make();
  }
  StepGuard& guard() { return guard_; }
  void step(const store::StepResult& result) {
    go_to(run().step + 1);
    guard_.judge(result, guard_.look(result));
  }
  /// Returns the error of a step, or "".
  std::string error_of(const store::StepResult& result) {
    try {
      step(result);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

 private:
  static config::Config with(const char* action) {
    config::Config config;
    config.spike_action = action;
    config.loss_spike_factor = 3;
    return config;
  }
  Evaluations evaluations_{run(), parts()};
  Saves saves_{run(), parts(), evaluations_, {}};
  StepGuard guard_{run(), parts(), saves_};
};

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(StepGuard, EndsTheRunAfterFiveStepsThatAreNotFinite) {
  GuardedRun run("skip");
  for (int i = 0; i < 4; ++i) run.step(kNotANumber);
  EXPECT_EQ(run.guard().not_finite_in_a_row(), 4);
  expect_says(run.error_of(kNotANumber), "not finite in 5 steps in a row");
  EXPECT_FALSE(run.guard().wants_back());
}

TEST(StepGuard, AppliesSpikeAction) {
  struct Case {
    const char* action;
    std::string error;
    Back back;
  };
  for (const Case& c : {Case{"skip", "", Back::no}, Case{"rollback", "", Back::other_data},
                        Case{"stop", "the run stops at a spike", Back::no}}) {
    for (const double loss : {200.0, static_cast<double>(NAN)}) {
      GuardedRun run(c.action);
      for (int i = 0; i < 10; ++i) run.step(kGood);
      expect_says(run.error_of({.loss_sum = loss, .label_tokens = 10, .grad_norm = 1}), c.error);
      EXPECT_EQ(run.guard().take_wish(), c.back) << c.action << " " << loss;
      EXPECT_FALSE(run.guard().wants_back()) << "a request is taken once";
    }
  }
}

TEST(StepGuard, KeepsItsCountsInACheckpoint) {
  GuardedRun run("skip");
  for (int i = 0; i < 10; ++i) run.step(kGood);
  run.step({.loss_sum = 200, .label_tokens = 10, .grad_norm = 1});
  Json state{{"not_finite_in_a_row", 3}, {"rollbacks", 2}};
  run.guard().add_to(state);
  GuardedRun resumed("skip");
  resumed.parts().checkpoint.emplace(resumed.save_checkpoint(11, state));
  resumed.guard().stand_at_checkpoint();
  EXPECT_EQ(resumed.guard().not_finite_in_a_row(), 3);
  using Counts = std::vector<std::pair<std::string, std::int64_t>>;
  EXPECT_EQ(resumed.guard().counts(), (Counts{{"spikes", 1}, {"rollbacks", 2}}));
}

TEST(StepGuard, ReturnsToTheNewestCheckpoint) {
  GuardedRun run("rollback");
  run.go_to(6);
  EXPECT_THROW(run.guard().checkpoint_to_return_to(Back::other_data), Error) << "there is none";
  run.save_checkpoint(3, Json::object());
  run.save_checkpoint(5, Json::object());
  EXPECT_EQ(run.guard().checkpoint_to_return_to(Back::other_data), run.folder() / "checkpoint-5");
  EXPECT_EQ(run.guard().checkpoint_to_return_to(Back::same_data), run.folder() / "checkpoint-5");
  try {
    run.guard().checkpoint_to_return_to(Back::same_data);
    ADD_FAILURE() << "the fourth return without a new checkpoint";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::hang);
    expect_says(e.what(), "3 times without a new checkpoint");
  }
}

}  // namespace
}  // namespace octet::train::step_guard_test
