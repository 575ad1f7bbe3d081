// lr_scheduler_type: reduce_lr_on_plateau. The rate follows evaluations, across stops and on any number of
// ranks.
#include <algorithm>
#include <set>

#include "cli/rates.h"
#include "cli/saves.h"
#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::test::plateau_test {
namespace {

// With this threshold, some evaluations count as better and some do not.
const optim::PlateauOptions kPlateau{.factor = 0.5, .patience = 1, .threshold = 0.08, .cooldown = 1};
const std::string kFollows =
    "eval_strategy=steps lr_scheduler_type=reduce_lr_on_plateau lr_scheduler_kwargs.factor=0.5 "
    "lr_scheduler_kwargs.patience=1 lr_scheduler_kwargs.threshold=0.08 lr_scheduler_kwargs.cooldown=1 "
    "eval_dataset=" +
    Task::get().held_out() + " ";
constexpr double kFirstRate = 2.0e-3;

TEST(Plateau, TheRateOfAStepIsThatBehindTheEvaluationsBeforeIt) {
  const TemporaryFolder folder("plateau");
  const std::string output = folder / "run";
  const Outcome run =
      trainer(Task::get().train(output, kFollows + "eval_steps=2 save_steps=40 max_steps=40 warmup_steps=9"));
  expect_success(run);
  EXPECT_EQ(evaluations_of(output).size(), 20u);
  expect_rates_follow(output, kPlateau, kFirstRate, 2);
  const auto rates = rates_of(output);
  const std::set<double> different(rates.begin(), rates.end());
  EXPECT_GE(different.size(), 3u) << "a run that keeps its rate shows nothing";
  EXPECT_GT(std::ranges::count(rates, kFirstRate), 6) << "and so does one whose evaluations are all the same";
  EXPECT_TRUE(
      says(run, ": the evaluation loss no longer improves: the learning rate falls from 0.002 to 0.001"))
      << run.err;
  EXPECT_TRUE(says(run, "'lr_scheduler_type: reduce_lr_on_plateau' has no warm-up")) << run.err;
  const Json state = checkpoint::Checkpoint(output + "/checkpoint-40").state();
  // The rate of the next step.
  EXPECT_EQ(state.at("learning_rate"), state.at("plateau").at("learning_rate"));
}

TEST(Plateau, EpochsEndWithAnEvaluationThatItFollows) {
  const TemporaryFolder folder("plateau");
  const std::string output = folder / "run";
  // Ten steps per epoch.
  expect_success(trainer(Task::get().train(
      output, kFollows + "eval_strategy=epoch max_steps=25 save_strategy=epoch "
                         "lr_scheduler_kwargs.patience=0 lr_scheduler_kwargs.threshold=0.9")));
  optim::PlateauOptions options = kPlateau;
  options.patience = 0, options.threshold = 0.9;
  expect_rates_follow(output, options, kFirstRate, 10);
  EXPECT_EQ(rates_of(output).back(), kFirstRate / 2);
}

TEST(WholePlateau, ARunThatGoesOnFromAnyStepHasTheRatesOfTheWholeOne) {
  const TemporaryFolder folder("plateau");
  const std::string keys =
      kFollows + "eval_steps=1 save_steps=1 max_steps=12 lr_scheduler_kwargs.threshold=0.1 ";
  const std::string whole = folder / "whole";
  expect_success(trainer(Task::get().train(whole, keys)));
  const auto rates = rates_of(whole);
  ASSERT_EQ(rates.size(), 12u);
  ASSERT_LT(rates.back(), kFirstRate);
  for (int step = 1; step < 12; ++step) {
    const std::string output = folder / std::to_string(step);
    expect_success(trainer(Task::get().train(output, keys + "save_steps=100 resume_from_checkpoint=" + whole +
                                                         "/checkpoint-" + std::to_string(step))));
    EXPECT_EQ(rates_of(output), std::vector<double>(rates.begin() + step, rates.end())) << step;
    expect_identical(whole + "/checkpoint-12", output + "/checkpoint-12");
    EXPECT_EQ(checkpoint::Checkpoint(whole + "/checkpoint-12").state().at("plateau"),
              checkpoint::Checkpoint(output + "/checkpoint-12").state().at("plateau"))
        << step;
  }
}

// A stopped run saves before the due evaluation. The rate of the next step still follows this evaluation.
TEST(WholePlateau, AStopInPlaceOfAnEvaluationChangesNothing) {
  const TemporaryFolder folder("plateau");
  const std::string keys = kFollows +
                           "eval_steps=1 save_steps=120 max_steps=120 lr_scheduler_kwargs.patience=0 "
                           "lr_scheduler_kwargs.threshold=0.001 lr_scheduler_kwargs.factor=0.95 "
                           "lr_scheduler_kwargs.cooldown=0 lr_scheduler_kwargs.eps=0 ";
  const std::string whole = folder / "whole", stopped = folder / "stopped";
  expect_success(trainer(Task::get().train(whole, keys)));
  const Outcome first =
      shell(OCTET_TRAINER " " + Task::get().train(stopped, keys) + " & job=$!; until [ $(cat " + stopped +
            "/trainer_log.jsonl 2>/dev/null | wc -l) -ge 7 ]; do sleep 0.02; done; "
            "kill -TERM $job; wait $job");
  ASSERT_EQ(first.code, 76) << first.both();
  const auto saved = checkpoints_of(stopped);
  ASSERT_EQ(saved.size(), 1u);
  ASSERT_LT(saved.front(), 120);
  EXPECT_FALSE(evaluations_of(stopped).contains(saved.front())) << "a stop waits for no evaluation";
  const Outcome second = trainer(Task::get().train(stopped, keys));
  expect_success(second);
  EXPECT_EQ(evaluations_of(stopped), evaluations_of(whole));
  EXPECT_EQ(rates_of(stopped), rates_of(whole));
  expect_identical(whole + "/checkpoint-120", stopped + "/checkpoint-120");
  std::map<std::int64_t, double> epochs[2];
  for (const std::string& output : {whole, stopped}) {
    for (const auto& line : split(slurp(output + "/trainer_log.jsonl"), '\n')) {
      if (line.empty()) continue;
      const Json row = parse_json(line, "trainer_log.jsonl");
      if (row.contains("eval_loss"))
        epochs[output == whole ? 0 : 1][row["current_steps"].get<std::int64_t>()] =
            row["epoch"].get<double>();
    }
  }
  EXPECT_EQ(epochs[0], epochs[1]);
}

// A longer run would not have the evaluation after the last step.
TEST(WholePlateau, ALongerRunGoesOnAsIfItHadNotEnded) {
  const TemporaryFolder folder("plateau");
  const std::string keys =
      kFollows + "eval_steps=5 lr_scheduler_kwargs.patience=0 lr_scheduler_kwargs.threshold=0.9 ";
  expect_success(trainer(Task::get().train(folder / "whole", keys + "max_steps=12")));
  expect_success(trainer(Task::get().train(folder / "longer", keys + "max_steps=7")));
  EXPECT_TRUE(evaluations_of(folder / "longer").contains(7));
  expect_success(trainer(Task::get().train(folder / "longer", keys + "max_steps=12")));
  EXPECT_EQ(rates_of(folder / "longer"), rates_of(folder / "whole"));
  EXPECT_EQ(rates_of(folder / "whole").back(), kFirstRate / 2);
  expect_identical(folder / "whole/checkpoint-12", folder / "longer/checkpoint-12");
}

TEST(Plateau, RanksShareOneRateThatIsThatOfOneRank) {
  const TemporaryFolder folder("plateau");
  const std::string keys = kFollows +
                           "eval_steps=1 deterministic=strict per_device_train_batch_size=3 "
                           "lr_scheduler_kwargs.threshold=0.1 ";
  const std::string one = folder / "one";
  expect_success(trainer(Task::get().train(one, keys)));
  ASSERT_LT(rates_of(one).back(), kFirstRate);
  for (const auto& [np, stage] : {std::pair{2, 0}, {2, 3}, {4, 1}, {4, 2}}) {
    const std::string output = folder / ("np" + std::to_string(np) + "stage" + std::to_string(stage));
    expect_success(trainer(Task::get().train(output, keys + "zero_stage=" + std::to_string(stage)), np));
    EXPECT_EQ(evaluations_of(output), evaluations_of(one)) << output;
    EXPECT_EQ(rates_of(output), rates_of(one)) << output;
    expect_identical(one + "/checkpoint-12", output + "/checkpoint-12");
  }
}

TEST(WholePlateau, OtherSchedulesAndItTakeOverEachOthersCheckpoints) {
  const TemporaryFolder folder("plateau");
  const std::string output = folder / "run";
  expect_success(trainer(Task::get().train(
      output, "max_steps=5 lr_scheduler_type=constant eval_dataset=" + Task::get().held_out())));
  EXPECT_FALSE(checkpoint::Checkpoint(output + "/checkpoint-5").state().contains("plateau"));
  const std::string keys =
      kFollows + "eval_steps=1 lr_scheduler_kwargs.patience=0 lr_scheduler_kwargs.threshold=0.9 ";
  const Outcome on = trainer(Task::get().train(output, keys + "max_steps=10"));
  expect_success(on);
  EXPECT_TRUE(says(on, "lr_scheduler_type: constant -> reduce_lr_on_plateau")) << on.err;
  const auto rates = rates_of(output);
  EXPECT_EQ(rates.at(5), kFirstRate);
  EXPECT_EQ(rates.at(6), kFirstRate) << "the first evaluation is its best";
  EXPECT_EQ(rates.at(7), kFirstRate / 2);
  // The same schedule at twice the rate, and then a different schedule.
  const Outcome twice = trainer(Task::get().train(output, keys + "max_steps=11 learning_rate=4.0e-3"));
  expect_success(twice);
  EXPECT_TRUE(says(twice, "learning_rate: ")) << twice.err;
  EXPECT_DOUBLE_EQ(
      rates_of(output).at(10),
      2 * checkpoint::Checkpoint(output + "/checkpoint-10").state().at("learning_rate").get<double>());
  expect_success(trainer(Task::get().train(output, "max_steps=12 lr_scheduler_type=constant")));
  EXPECT_EQ(rates_of(output).at(11), kFirstRate);
}

}  // namespace
}  // namespace octet::test::plateau_test
