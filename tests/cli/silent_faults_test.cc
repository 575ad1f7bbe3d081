// Silent bit flips: they are reported with the rank, never saved in a checkpoint, and undone if requested.
#include "cli/task.h"

namespace octet::test::silent_faults_test {
namespace {

namespace fs = std::filesystem;

const std::string kChecks = "sdc_steps=1 sdc_replay_steps=1 save_steps=3 ";

std::string steps(int np) {
  return "global_batch_size=" + std::to_string(4 * std::max(1, np)) + " ";
}

/// Runs with bits inverted by OCTETRUN_FLIPS.
Outcome flipped(const std::string& flips, int np, const std::string& output, const std::string& keys) {
  ::setenv("OCTETRUN_FLIPS", flips.c_str(), 1);
  const Outcome run = trainer(Task::get().train(output, steps(np) + keys), np);
  ::unsetenv("OCTETRUN_FLIPS");
  return run;
}

void expect_said(const Outcome& run, const std::string& part) {
  EXPECT_NE(run.err.find(part), std::string::npos) << part << "\n" << run.err;
}

TEST(SilentFaults, ARunStopsWith75AndNamesTheRankAndTheLastVerifiedCheckpoint) {
  struct Case {
    int np, stage;
    std::string flips, who, what;
  };
  for (const Case& c :
       {Case{4, 1, "2:5:moments:7", "rank 2 (", "moments changed between two updates"},
        Case{3, 3, "1:5:gradients:7", "rank 1 (", "differ when rank"},
        Case{2, 0, "1:5:messages:7", "rank 1 (", "was changed on its way"},
        Case{1, 0, "0:5:parameters:7", "rank 0 (", "parameters changed between two updates"}}) {
    SCOPED_TRACE(c.flips);
    const TemporaryFolder folder("flip");
    const std::string out = folder / "out";
    const Outcome run = flipped(c.flips, c.np, out, kChecks + "zero_stage=" + std::to_string(c.stage));
    EXPECT_EQ(run.code, 75) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    expect_said(run, "corrupted bits on " + c.who);
    expect_said(run, c.what);
    expect_said(run, "step 5");
    expect_said(run, "the last verified checkpoint is " + out + "/checkpoint-3");
    EXPECT_TRUE(fs::exists(out + "/checkpoint-3"));
    EXPECT_FALSE(fs::exists(out + "/checkpoint-6"));
    EXPECT_EQ(steps_of(out).rbegin()->first, 4) << "the step that was found wrong is none";
  }
}

TEST(SilentFaults, OfTwoRanksThatComputeDifferentlyBothAreNamed) {
  const TemporaryFolder folder("two");
  const Outcome run = flipped("1:2:gradients:7", 2, folder / "out", kChecks + "zero_stage=2");
  EXPECT_EQ(run.code, 75) << run.both();
  expect_said(run, "corrupted bits on rank 0 (");
  expect_said(run, " or rank 1 (");
  expect_said(run, "there is no verified checkpoint yet: start again");
}

// The log has one row per step and the result has the bits of a run without faults, with a checkpoint in
// between.
TEST(SilentFaults, ARunGoesBackAndEndsInTheSameBits) {
  const TemporaryFolder folder("back");
  const std::string keys = "zero_stage=1 save_steps=3 log_samples=true ";
  expect_success(trainer(Task::get().train(folder / "clean", steps(4) + keys), 4));
  const Outcome run = flipped("3:4:parameters:2,0:8:messages:9,1:9:gradients:3", 4, folder / "out",
                              keys + kChecks + "sdc_action=rollback");
  expect_success(run);
  expect_said(run, "step 4: corrupted bits on rank 3 (");
  expect_said(run, "returned from step 3 to " + (folder / "out/checkpoint-3"));
  expect_said(run, "step 9: corrupted bits on rank 1 (");
  expect_identical(folder / "clean/checkpoint-12", folder / "out/checkpoint-12");
  expect_every_step(folder / "out", 12);
  expect_same_losses(folder / "clean", folder / "out", 1e-15);
  EXPECT_EQ(slurp(folder / "clean/samples.jsonl"), slurp(folder / "out/samples.jsonl"));
  EXPECT_EQ(steps_of(folder / "out").at(12).at("rollbacks"), 3);
  EXPECT_GE(steps_of(folder / "out").at(12).at("sdc_checks").get<int>(), 12);
}

TEST(WholeSilentFaults, ARunDoesNotGoBackForEver) {
  const TemporaryFolder folder("again");
  const Outcome none = flipped("0:2:moments:1", 2, folder / "none", kChecks + "sdc_action=rollback");
  EXPECT_EQ(none.code, 75) << none.both();
  EXPECT_EQ(errors_in(none), 1) << none.err;
  expect_said(none, "there is no checkpoint to return to");
  expect_success(trainer(Task::get().train(folder / "often", steps(2) + "zero_stage=1 max_steps=3"), 2));
  const Outcome often =
      flipped("0:4:moments:1,0:5:moments:1,0:6:moments:1,1:7:moments:1", 2, folder / "often",
              kChecks + "save_steps=100 zero_stage=1 sdc_action=rollback");
  EXPECT_EQ(often.code, 75) << often.both();
  expect_said(often, "returned to a checkpoint 3 times without a new checkpoint");
}

TEST(WholeSilentFaults, ChecksChangeNoBitAndFindNothingInACleanRun) {
  const TemporaryFolder folder("clean");
  const std::string recipes[] = {"", "bf16=true fp8=true",
                                 "bf16=true fp8=true fp8_recipe=current deterministic=strict",
                                 "finetuning_type=lora lora_dropout=0.1 bf16=true"};
  int number = 0;
  for (const std::string& recipe : recipes) {
    SCOPED_TRACE(recipe);
    const std::string keys =
        recipe + " save_steps=6 max_steps=6 zero_stage=" + std::to_string(number) + " global_batch_size=24 ";
    const std::string one = folder / ("plain-" + std::to_string(number)),
                      other = folder / ("checked-" + std::to_string(number));
    expect_success(trainer(Task::get().train(one, keys), 3));
    const Outcome run = trainer(Task::get().train(other, keys + "sdc_steps=2 sdc_replay_steps=1"), 3);
    expect_success(run);
    EXPECT_EQ(run.err.find("corrupted bits"), std::string::npos) << run.err;
    expect_identical(one + "/checkpoint-6", other + "/checkpoint-6");
    EXPECT_EQ(steps_of(other).at(6).at("sdc_replays"), 6);
    ++number;
  }
}

TEST(SilentFaults, EverySaveIsCheckedAndSoIsTheStepBeforeIt) {
  const TemporaryFolder folder("saves");
  const auto checks = [&](const std::string& name, const std::string& keys) {
    expect_success(trainer(Task::get().train(folder / name, "save_total_limit=1 " + keys)));
    std::vector<int> counts;
    for (const auto& [step, row] : steps_of(folder / name)) counts.push_back(row.at("sdc_checks"));
    return counts;
  };
  EXPECT_EQ(checks("each", "sdc_steps=1 save_steps=1 max_steps=3"), (std::vector{1, 3, 5}));
  EXPECT_EQ(checks("second", "sdc_steps=50 save_steps=2 max_steps=5"), (std::vector{0, 1, 2, 3, 5}))
      << "the last one, too";
  EXPECT_EQ(checks("epochs", "sdc_steps=50 save_strategy=epoch max_samples=72 max_steps=7"),
            (std::vector{0, 0, 1, 2, 2, 3, 5}));
}

TEST(SilentFaults, ATextThatNamesNoBitsIsRefused) {
  const TemporaryFolder folder("refused");
  for (const char* flips : {"1:2:moments", "1:2:hearts:3", "a:2:moments:3", "1:2:moments:3x"}) {
    const Outcome run = flipped(flips, 0, folder / "out", "sdc_steps=1 max_steps=2");
    EXPECT_EQ(run.code, 64) << run.both();
    expect_said(run, "OCTETRUN_FLIPS has an invalid value");
  }
}

}  // namespace
}  // namespace octet::test::silent_faults_test
