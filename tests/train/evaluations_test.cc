// Evaluations of a run that set the learning rate. The evaluations themselves need an engine.
#include "../src/train/evaluations.h"

#include <gtest/gtest.h>

#include "octet/base/json.h"
#include "octet/config/config.h"
#include "octet/setup/setup.h"
#include "train/run_objects.h"

namespace octet::train::evaluations_test {
namespace {

using run_objects::BareRun;

config::Config plateau() {
  config::Config config;
  config.lr_scheduler_type = "reduce_lr_on_plateau";
  config.eval_strategy = "steps";
  config.eval_steps = 4;
  return config;
}

void make_schedule(BareRun& run) {
  run.parts().schedule =
      std::make_unique<optim::Schedule>(setup::schedule_options(run.run().config, run.run().total_steps));
}

Json state_of(const Evaluations& evaluations) {
  Json state = Json::object();
  evaluations.add_to(state);
  return state;
}

TEST(Evaluations, AreOwedByARunThatStopsBeforeThem) {
  BareRun run(plateau());
  make_schedule(run);
  const Evaluations evaluations(run.run(), run.parts());
  for (const std::int64_t step : {3, 4, 5, 8}) {
    run.go_to(step);
    EXPECT_EQ(state_of(evaluations)["plateau"].contains("owes_evaluation"), step % 4 == 0) << step;
  }
}

TEST(Evaluations, LeaveOtherSchedulesAlone) {
  config::Config config = plateau();
  config.lr_scheduler_type = "linear";
  BareRun run(config);
  make_schedule(run);
  run.go_to(4);
  EXPECT_EQ(state_of(Evaluations(run.run(), run.parts())), Json::object());
}

TEST(Evaluations, ContinueTheRateOfACheckpoint) {
  BareRun run(plateau());
  make_schedule(run);
  Evaluations evaluations(run.run(), run.parts());
  run.go_to(5);
  Json state = state_of(evaluations);
  state["plateau"]["learning_rate"] = 1e-6;
  run.parts().checkpoint.emplace(run.save_checkpoint(5, state));
  evaluations.take_over();
  EXPECT_EQ(run.parts().schedule->learning_rate(5), 1e-6);
  // The checkpoint of another schedule has no such state.
  make_schedule(run);
  run.parts().checkpoint.emplace(run.save_checkpoint(6, Json::object()));
  evaluations.take_over();
  EXPECT_EQ(run.parts().schedule->learning_rate(6), run.run().config.learning_rate);
}

// Early stops and saves of the best model follow evaluations, and resume.
TEST(Evaluations, AreOwedToRunsThatFollowTheBestFigure) {
  for (const bool stops : {true, false}) {
    config::Config config = plateau();
    config.lr_scheduler_type = "linear";
    if (stops) config.early_stopping_steps = 2;
    if (!stops) config.save_strategy = "best";
    BareRun run(config);
    make_schedule(run);
    const Evaluations evaluations(run.run(), run.parts());
    for (const std::int64_t step : {3, 4}) {
      run.go_to(step);
      EXPECT_EQ(state_of(evaluations)["best_figure"].contains("owes_evaluation"), step == 4) << step;
    }
  }
}

TEST(Evaluations, EndARunThatHasStoppedEarly) {
  config::Config config = plateau();
  config.lr_scheduler_type = "linear";
  config.early_stopping_steps = 2;
  for (const std::int64_t stale : {1, 2}) {
    BareRun run(config);
    make_schedule(run);
    run.go_to(5);
    Evaluations evaluations(run.run(), run.parts());
    const Json figure{{"figure", "loss"}, {"greater", false}, {"stale", stale}, {"best", 1.5}};
    run.parts().checkpoint.emplace(run.save_checkpoint(5, {{"best_figure", figure}}));
    evaluations.take_over();
    EXPECT_EQ(evaluations.ends_run(), stale == 2);
    EXPECT_EQ(state_of(evaluations)["best_figure"], figure);
  }
}

TEST(Evaluations, BeginAfterEvalDelay) {
  struct Case {
    const char* strategy;
    double delay;
    std::vector<std::int64_t> due;
  };
  for (const Case& c :
       {Case{"steps", 0, {2, 4, 6, 8, 10}}, Case{"steps", 5, {6, 8, 10}}, Case{"steps", 6, {6, 8, 10}},
        Case{"epoch", 0, {4, 8}}, Case{"epoch", 1.5, {8}}, Case{"epoch", 2, {8}}}) {
    config::Config config;
    config.eval_strategy = c.strategy;
    config.eval_steps = 2;
    config.eval_delay = c.delay;
    config.early_stopping_steps = 1;
    BareRun run(config);
    make_schedule(run);
    const Evaluations evaluations(run.run(), run.parts());
    std::vector<std::int64_t> due;
    for (std::int64_t step = 1; step <= BareRun::kTotal; ++step) {
      run.go_to(step);
      if (state_of(evaluations)["best_figure"].contains("owes_evaluation")) due.push_back(step);
    }
    EXPECT_EQ(due, c.due) << c.strategy << " " << c.delay;
  }
}

TEST(Evaluations, DoNotRunWithoutData) {
  config::Config config = plateau();
  config.eval_steps = 1;
  BareRun run(config);
  run.go_to(1);
  Evaluations evaluations(run.run(), run.parts());
  evaluations.evaluate_in_turn();
  evaluations.make_up();
  EXPECT_EQ(evaluations.latest().step, -1);
}

}  // namespace
}  // namespace octet::train::evaluations_test
