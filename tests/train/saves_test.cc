// The checkpoints of a run: when they are due, and the best of them. The saves themselves need an engine.
#include "../src/train/saves/saves.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "octet/base/json.h"
#include "octet/checkpoint/folder.h"
#include "octet/config/config.h"
#include "train/run_objects.h"

namespace octet::train::saves_test {
namespace {

using run_objects::BareRun;
using Steps = std::vector<std::int64_t>;

config::Config saving(const char* strategy, double steps) {
  config::Config config;
  config.save_strategy = strategy;
  config.save_steps = steps;
  return config;
}

/// Saves of a run that never calls for the contents of a checkpoint.
struct SavesOf {
  explicit SavesOf(BareRun& run)
      : evaluations(run.run(), run.parts()), saves(run.run(), run.parts(), evaluations, {}) {}
  Evaluations evaluations;
  Saves saves;
};

TEST(Saves, AreDueAsPlanned) {
  struct Case {
    const char* strategy;
    double steps;
    Steps due;
  };
  for (const Case& c : {Case{"steps", 3, {3, 6, 9}}, Case{"steps", 0.5, {5, 10}}, Case{"epoch", 3, {4, 8}},
                        Case{"no", 3, {}}}) {
    BareRun run(saving(c.strategy, c.steps));
    const SavesOf of(run);
    Steps due, planned;
    for (std::int64_t step = 1; step <= BareRun::kTotal; ++step) {
      if (of.saves.plans(step)) planned.push_back(step);
      run.go_to(step);
      if (of.saves.is_due()) due.push_back(step);
    }
    EXPECT_EQ(due, c.due) << c.strategy << " " << c.steps;
    EXPECT_EQ(planned, c.due) << c.strategy << " " << c.steps;
  }
}

TEST(Saves, NameTheCheckpointOfTheStart) {
  BareRun run;
  run.parts().checkpoint.emplace(run.save_checkpoint(4, Json::object()));
  run.go_to(4);
  SavesOf of(run);
  EXPECT_EQ(of.saves.saved_step(), -1);
  of.saves.stand_at_checkpoint({});
  EXPECT_EQ(of.saves.saved_step(), 4);
  EXPECT_EQ(of.saves.last_checkpoint(), run.folder() / "checkpoint-4");
  EXPECT_EQ(of.saves.completed(), 0) << "another process has saved it";
}

/// Resumes from a checkpoint with this state. Returns the step of the best checkpoint.
std::int64_t best_after(const Json& state, const Steps& present, config::Config config = {}) {
  if (config.save_strategy != "best") config.load_best_model_at_end = true;
  BareRun run(config);
  for (const std::int64_t step : present)
    std::filesystem::create_directory(run.folder() / checkpoint::folder_name(step));
  run.parts().checkpoint.emplace(run.save_checkpoint(9, state));
  run.go_to(9);
  SavesOf of(run);
  of.saves.open();
  of.saves.stand_at_checkpoint({});
  of.saves.begin();
  return of.saves.best_step();
}

TEST(Saves, ResumeWithTheBestCheckpointThatIsPresent) {
  const Json best{{"step", 4}, {"loss", 2.0}}, under_way{{"step", 6}, {"loss", 1.0}};
  EXPECT_EQ(best_after(Json::object(), {4}), -1);
  EXPECT_EQ(best_after({{"best", best}}, {4}), 4);
  EXPECT_EQ(best_after({{"best", best}}, {}), -1) << "it was removed";
  // A checkpoint in memory may be older than a checkpoint on disk that was being written at that time.
  const Json both{{"best", best}, {"best_under_way", under_way}};
  EXPECT_EQ(best_after(both, {4, 6}), 6);
  EXPECT_EQ(best_after(both, {4}), 4) << "the other was not completed";
}

TEST(Saves, ResumeWithTheBestCheckpointOfTheSameFigure) {
  const Json loss{{"step", 4}, {"loss", 2.0}};
  const Json accuracy{{"step", 4}, {"figure", "accuracy"}, {"greater", true}, {"value", 0.5}};
  config::Config config;
  config.metric_for_best_model = "eval_accuracy";
  EXPECT_EQ(best_after({{"best", accuracy}}, {4}, config), 4);
  EXPECT_EQ(best_after({{"best", loss}}, {4}, config), -1);
  EXPECT_EQ(best_after({{"best", accuracy}}, {4}), -1);
  config.save_strategy = "best";
  EXPECT_EQ(best_after({{"best", accuracy}}, {4}, config), 4) << "save_strategy: best keeps it, too";
}

}  // namespace
}  // namespace octet::train::saves_test
