// Checkpoints whose interval nobody gave: when they come, and that they change nothing else.
#include "cli/saves.h"

namespace octet::test {
namespace {

/// The task without the line that says how often it is saved.
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

TEST(SaveInterval, IsThatOfSaveStepsWhereItIsGiven) {
  const TemporaryFolder folder("given");
  const Outcome run = trainer(Task::get().train(folder / "run", "mtbf_hours=1e-9"));
  expect_success(run);
  EXPECT_NE(run.err.find("save_steps decides; mtbf_hours is not read"), std::string::npos) << run.err;
  EXPECT_EQ(checkpoints_of(folder / "run"), (std::vector<std::int64_t>{5, 10, 12}));
}

}  // namespace
}  // namespace octet::test
