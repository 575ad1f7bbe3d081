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
