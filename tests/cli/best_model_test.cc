// load_best_model_at_end: the final model has the smallest evaluation loss, also after stops and with save
// limits. save_strategy: best, and early_stopping_steps.
#include <algorithm>

#include "cli/task.h"
#include "octet/base/files.h"
#include "octet/base/json.h"

namespace octet::test::best_model_test {
namespace {

/// Returns the evaluation losses by step.
std::map<std::int64_t, double> evaluations(const std::string& output) {
  std::map<std::int64_t, double> losses;
  for (const auto& line : split(slurp(output + "/trainer_log.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json row = parse_json(line, "trainer_log.jsonl");
    if (row.contains("eval_loss"))
      losses[row["current_steps"].get<std::int64_t>()] = row["eval_loss"].get<double>();
  }
  return losses;
}

std::int64_t best_of(const std::map<std::int64_t, double>& losses) {
  return std::ranges::min_element(losses, {}, [](const auto& row) { return row.second; })->first;
}

std::string weights_of(const std::string& folder) {
  return hash128_hex(slurp(folder + "/model.safetensors"));
}

std::string exported(const std::string& checkpoint, const std::string& folder) {
  const Outcome made = trainer("export " + checkpoint + " " + folder + " --model " + Task::get().model());
  EXPECT_EQ(made.code, 0) << made.both();
  return weights_of(folder);
}

// The rate rises until the model forgets, so the best evaluation is in the middle.
const std::string kForgets =
    "eval_dataset=" + Task::get().held_out() +
    " eval_strategy=steps eval_steps=2 save_steps=2 max_steps=12 learning_rate=1 warmup_steps=12 "
    "load_best_model_at_end=true ";

TEST(BestModel, IsTheFinalOneAlthoughOldCheckpointsGo) {
  const TemporaryFolder folder("best");
  const std::string output = folder / "out";
  const Outcome ran = trainer(Task::get().train(output, kForgets + "save_total_limit=1"), 2);
  ASSERT_EQ(ran.code, 0) << ran.both();
  const auto losses = evaluations(output);
  ASSERT_EQ(losses.size(), 6u);
  const std::int64_t best = best_of(losses);
  ASSERT_LT(best, 12) << "a run that gets better to its end shows nothing";
  const std::string checkpoint = output + "/checkpoint-" + std::to_string(best);
  EXPECT_TRUE(path_exists(checkpoint)) << "of which the limit keeps one more";
  EXPECT_TRUE(path_exists(output + "/checkpoint-12"));
  EXPECT_EQ(weights_of(output), exported(checkpoint, folder / "best"));
  EXPECT_NE(weights_of(output), exported(output + "/checkpoint-12", folder / "last"));
}

TEST(BestModel, IsRememberedByARunThatGoesOn) {
  const TemporaryFolder folder("best");
  const std::string output = folder / "out";
  const Outcome ran = trainer(Task::get().train(output, kForgets + "save_total_limit=1"));
  ASSERT_EQ(ran.code, 0) << ran.both();
  const std::int64_t best = best_of(evaluations(output));
  // Later steps are worse, so the best checkpoint is from before this start.
  const Outcome more =
      trainer(Task::get().train(output, kForgets + "save_total_limit=1 max_steps=16 learning_rate=5 "
                                                   "resume_from_checkpoint=auto"));
  ASSERT_EQ(more.code, 0) << more.both();
  EXPECT_EQ(best_of(evaluations(output)), best);
  EXPECT_EQ(weights_of(output), exported(output + "/checkpoint-" + std::to_string(best), folder / "best"));
}

TEST(BestModel, WhereItIsGoneLaterOnesAreComparedAlone) {
  const TemporaryFolder folder("best");
  const std::string output = folder / "out";
  expect_success(trainer(Task::get().train(output, kForgets)));
  const std::int64_t best = best_of(evaluations(output));
  ASSERT_LT(best, 12);
  const std::string checkpoint = output + "/checkpoint-" + std::to_string(best);
  std::filesystem::remove_all(checkpoint);
  const Outcome more =
      trainer(Task::get().train(output, kForgets + "max_steps=16 resume_from_checkpoint=auto"));
  expect_success(more);
  EXPECT_NE(
      more.err.find("the best checkpoint so far no longer exists, so only later checkpoints are compared: " +
                    checkpoint),
      std::string::npos)
      << more.err;
  auto losses = evaluations(output);
  std::erase_if(losses, [](const auto& row) { return row.first <= 12; });
  EXPECT_EQ(weights_of(output),
            exported(output + "/checkpoint-" + std::to_string(best_of(losses)), folder / "best"));
}

std::vector<std::int64_t> checkpoints_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint-")) steps.push_back(std::stoll(name.substr(11)));
  }
  std::ranges::sort(steps);
  return steps;
}

// A run that forgets ends two evaluations after its best one. A new start does not train again.
TEST(BestModel, EndsARunThatNoLongerImproves) {
  const TemporaryFolder folder("best");
  const std::string output = folder / "out";
  const std::string keys = kForgets + "early_stopping_steps=2 resume_from_checkpoint=auto ";
  const Outcome ran = trainer(Task::get().train(output, keys), 2);
  ASSERT_EQ(ran.code, 0) << ran.both();
  const auto losses = evaluations(output);
  const std::int64_t best = best_of(losses), last = losses.rbegin()->first;
  ASSERT_LT(best, 8) << "a run that improves until its end shows nothing";
  EXPECT_EQ(last, best + 4);
  EXPECT_EQ(checkpoints_in(output).back(), last);
  EXPECT_NE(ran.both().find("step " + std::to_string(last) + ": 2 evaluations in a row are not better"),
            std::string::npos)
      << ran.both();
  const std::string weights = weights_of(output);
  EXPECT_EQ(weights, exported(output + "/checkpoint-" + std::to_string(best), folder / "best"));
  const Outcome again = trainer(Task::get().train(output, keys));
  ASSERT_EQ(again.code, 0) << again.both();
  EXPECT_NE(again.both().find("the run has ended early, and trains no more"), std::string::npos)
      << again.both();
  EXPECT_EQ(checkpoints_in(output).back(), last);
  EXPECT_EQ(weights_of(output), weights);
}

TEST(BestModel, AloneIsSavedWithSaveStrategyBest) {
  const TemporaryFolder folder("best");
  const std::string output = folder / "out";
  const Outcome ran = trainer(Task::get().train(output, kForgets + "save_strategy=best"));
  ASSERT_EQ(ran.code, 0) << ran.both();
  const auto losses = evaluations(output);
  double least = 1e9;
  std::vector<std::int64_t> improved;
  for (const auto& [step, loss] : losses) {
    if (loss < least) improved.push_back(step);
    least = std::min(least, loss);
  }
  ASSERT_LT(improved.back(), 12);
  EXPECT_EQ(weights_of(output),
            exported(output + "/checkpoint-" + std::to_string(improved.back()), folder / "best"));
  improved.push_back(12);  // the run can continue from its end
  EXPECT_EQ(checkpoints_in(output), improved);
}

// A corrupt checkpoint is not used, even if its model was the best.
TEST(BestModel, IsTheNextBestWhereTheBestDoesNotHold) {
  const TemporaryFolder folder("best");
  const std::string output = folder / "out";
  expect_success(trainer(Task::get().train(output, kForgets + "learning_rate=0.6")));
  auto losses = evaluations(output);
  const std::int64_t best = best_of(losses);
  ASSERT_LT(best, 12);
  ASSERT_GT(best, 2);
  losses.erase(best);
  ASSERT_LT(best_of(losses), best) << "what must be kept while later ones come and go";
  const std::string disk =
      "LD_PRELOAD=" OCTET_FLIPPING_DISK " BAD_DISK_FLIP=checkpoint-" + std::to_string(best) + ". ";
  for (const char* keys : {"learning_rate=0.6 save_total_limit=1 save_async=false",
                           "learning_rate=0.6 save_total_limit=1 save_async=true"}) {
    std::filesystem::remove_all(output);
    const Outcome run = shell(disk + OCTET_TRAINER " " + Task::get().train(output, kForgets + keys));
    expect_success(run);
    EXPECT_EQ(weights_of(output),
              exported(output + "/checkpoint-" + std::to_string(best_of(losses)), folder / "best"))
        << keys << run.err;
    std::filesystem::remove_all(folder / "best");
  }
}

}  // namespace
}  // namespace octet::test::best_model_test
