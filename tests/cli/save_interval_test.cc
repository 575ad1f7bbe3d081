// Checkpoints with an automatic interval: when they are written, and that they change nothing else.
#include "cli/saves.h"

namespace octet::test::save_interval_test {
namespace {

/// Writes the task's configuration without save_steps, and returns the arguments.
std::string open_task(const std::string& folder) {
  std::string text = slurp(Task::get().config());
  const std::size_t at = text.find("save_steps");
  text.erase(at, text.find('\n', at) - at);
  spill(folder, text);
  return "train " + folder + " max_steps=14 ";
}

TEST(SaveInterval, FollowsFromTheTimeBetweenFailuresOnAllRanksAndChangesNoBit) {
  const TemporaryFolder folder("mtbf");
  const std::string run = open_task(folder / "config.yaml");
  expect_success(trainer(run + "output_dir=" + (folder / "plain"), 3));
  const Outcome often = trainer(run + "mtbf_hours=1e-9 output_dir=" + (folder / "often"), 3);
  expect_success(often);
  expect_measured_step(often, "checkpoints", folder / "often");
  EXPECT_NE(often.err.find("checkpoints after every step from here on (mtbf_hours): a save takes "),
            std::string::npos)
      << often.err;
  EXPECT_EQ(checkpoints_of(folder / "often"), (std::vector<std::int64_t>{10, 11, 12, 13, 14}));
  const Outcome seldom = trainer(run + "mtbf_hours=1e6 output_dir=" + (folder / "seldom"), 3);
  expect_success(seldom);
  EXPECT_EQ(checkpoints_of(folder / "seldom"), (std::vector<std::int64_t>{10, 14}));
  for (const char* other : {"often", "seldom"})
    expect_identical(folder / "plain/checkpoint-14", folder / (other + std::string("/checkpoint-14")));
}

// The step before a save is also checked with an automatic interval. A failed save does not count in the cost
// from which the interval follows.
TEST(SaveInterval, IsKnownToWhatChecksBeforeSavesAndSurvivesOneThatFails) {
  const TemporaryFolder folder("mtbf_checks");
  const std::string run = open_task(folder / "config.yaml") + "max_steps=12 mtbf_hours=1e-9 ";
  expect_success(trainer(run + "sdc_steps=100 output_dir=" + (folder / "checked")));
  std::vector<int> checks;
  for (const auto& [step, row] : steps_of(folder / "checked")) checks.push_back(row.at("sdc_checks"));
  EXPECT_EQ(checks, (std::vector{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 5}));
  spill(folder / "full/disk-is-full", "");
  const Outcome full =
      shell("OCTETRUN_FAILPOINT=full_disk " OCTET_TRAINER " " + run +
            "max_steps=22 max_failed_saves=100 save_async=false output_dir=" + (folder / "full"));
  EXPECT_EQ(full.code, 78) << full.both();
  std::map<std::int64_t, int> failed;  // by number of failed saves: rows of the log
  for (const auto& [step, row] : steps_of(folder / "full"))
    ++failed[row.value("failed_saves", std::int64_t{0})];
  EXPECT_EQ(failed, (std::map<std::int64_t, int>{{0, 10}, {1, 10}, {2, 2}})) << "ten steps later again";
}

TEST(SaveInterval, IsThatOfSaveStepsWhereItIsGiven) {
  const TemporaryFolder folder("given");
  const Outcome run = trainer(Task::get().train(folder / "run", "mtbf_hours=1e-9"));
  expect_success(run);
  EXPECT_NE(run.err.find("decides; mtbf_hours is not read"), std::string::npos) << run.err;
  EXPECT_EQ(checkpoints_of(folder / "run"), (std::vector<std::int64_t>{5, 10, 12}));
}

}  // namespace
}  // namespace octet::test::save_interval_test
