// The program with sharding groups: equal bits in strict runs, resumed runs, and refused group sizes.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <vector>

#include "cli/task.h"

namespace octet::test::shard_groups_test {
namespace {

/// Strict runs of 16 samples per step have the same bits with any number of ranks.
class ShardGroupRuns : public testing::Test {
 protected:
  /// Trains into `name` and returns the output folder.
  std::string train(const std::string& name, int np, int steps, const std::string& keys) {
    const std::string output = folder_ / name;
    expect_success(
        trainer(Task::get().train(output,
                                  "deterministic=strict global_batch_size=16 per_device_train_batch_size=1 "
                                  "lr_scheduler_type=constant save_steps=100 plot_loss=false max_steps=" +
                                      std::to_string(steps) + " " + keys),
                np));
    return output;
  }

  /// Expects the bits of one rank after `steps` steps.
  void expect_bits_of_one_rank(int steps, const std::vector<std::array<int, 3>>& ways) {
    const std::string last = "/checkpoint-" + std::to_string(steps);
    const std::string alone = train("alone", 1, steps, "") + last;
    int number = 0;
    for (const auto& [np, stage, group] : ways) {
      SCOPED_TRACE(std::to_string(np) + " ranks, stage " + std::to_string(stage) + ", groups of " +
                   std::to_string(group));
      const std::string output =
          train(std::to_string(number++), np, steps,
                "zero_stage=" + std::to_string(stage) + " zero_group_size=" + std::to_string(group));
      expect_identical(alone, output + last);
      expect_same_losses(folder_ / "alone", output, 0);
    }
  }

  const TemporaryFolder folder_{"shard_groups"};
};

using WholeShardGroupRuns = ShardGroupRuns;

TEST_F(WholeShardGroupRuns, HaveTheBitsOfOneRankAfterTwentySteps) {
  std::vector<std::array<int, 3>> ways;
  for (const int stage : {1, 2, 3}) {
    for (const int group : {1, 2, 4}) ways.push_back({4, stage, group});
  }
  for (const int group : {1, 2, 4, 8}) ways.push_back({8, 3, group});
  expect_bits_of_one_rank(20, ways);
}

TEST_F(WholeShardGroupRuns, ContinueWithAnotherGroupAndWorldSize) {
  const std::string whole = train("alone", 1, 4, "") + "/checkpoint-4";
  const std::string output = train("run", 4, 2, "zero_stage=3 zero_group_size=2");
  std::filesystem::remove(output + "/model.safetensors");
  train("run", 2, 3, "zero_stage=2 zero_group_size=1 resume_from_checkpoint=auto overwrite_output_dir=false");
  std::filesystem::remove(output + "/model.safetensors");
  train("run", 8, 4, "zero_stage=3 zero_group_size=4 resume_from_checkpoint=auto overwrite_output_dir=false");
  expect_identical(whole, output + "/checkpoint-4");
}

TEST_F(ShardGroupRuns, AreRefusedIfTheGroupDoesNotDivideTheRanks) {
  const Outcome run =
      trainer(Task::get().train(folder_ / "run",
                                "max_steps=1 per_device_train_batch_size=2 zero_stage=2 zero_group_size=3"),
              4);
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(
      run.err.find("error: zero_group_size does not fit the run\n  expected: a divisor of the number of "
                   "ranks, 4\n  found:    zero_group_size 3\n"),
      std::string::npos)
      << run.err;
}

}  // namespace
}  // namespace octet::test::shard_groups_test
