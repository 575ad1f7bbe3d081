// Room on the disk, by arithmetic that this file does itself.
#include "../src/train/disk_room.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"

namespace octet::train {
namespace {

constexpr std::int64_t kParameters = 1'000'000;

config::Config saving(double every) {
  config::Config config;
  config.save_steps = every;
  return config;
}

std::int64_t checkpoints(const config::Config& config, std::int64_t first, std::int64_t total,
                         std::int64_t there = 0) {
  return disk_need(config, {.parameters = kParameters,
                            .first_step = first,
                            .total_steps = total,
                            .steps_per_epoch = 30,
                            .checkpoints = there})
      .checkpoints;
}

TEST(DiskNeed, CountsTheBytesThatAreStored) {
  const auto bytes = [](const config::Config& config) {
    return disk_need(config, {.parameters = kParameters, .total_steps = 1});
  };
  config::Config config;
  EXPECT_EQ(bytes(config).checkpoint_bytes, 12 * kParameters);
  EXPECT_EQ(bytes(config).model_bytes, 4 * kParameters);
  config.param_dtype = config.optim_dtype = "bf16";
  config.bf16 = true;
  EXPECT_EQ(bytes(config).checkpoint_bytes, 6 * kParameters);
  EXPECT_EQ(bytes(config).model_bytes, 2 * kParameters);
  config.optim_dtype = "int8";
  EXPECT_EQ(bytes(config).checkpoint_bytes, 2 * kParameters + 2 * kParameters + 2 * kParameters * 4 / 128);
  EXPECT_EQ(bytes(config).all(), bytes(config).checkpoint_bytes + bytes(config).model_bytes);
}

TEST(DiskNeed, CountsTheCheckpointsToCome) {
  EXPECT_EQ(checkpoints(saving(10), 0, 100), 10);
  EXPECT_EQ(checkpoints(saving(10), 0, 95), 10) << "nine, and one at the end";
  EXPECT_EQ(checkpoints(saving(10), 55, 95), 5);
  EXPECT_EQ(checkpoints(saving(500), 0, 100), 1);
  config::Config config = saving(10);
  config.save_strategy = "no";
  EXPECT_EQ(checkpoints(config, 0, 100), 1) << "it carries the weights to the model";
  config.save_strategy = "epoch";
  EXPECT_EQ(checkpoints(config, 0, 100), 4);
  config.save_strategy = "steps";
  config.save_total_limit = 2;
  EXPECT_EQ(checkpoints(config, 0, 100), 3) << "a new one is whole before an old one goes";
  EXPECT_EQ(checkpoints(config, 50, 100, 2), 1);
  EXPECT_EQ(checkpoints(config, 50, 100, 7), 1);
}

TEST(DiskNeed, TwoCheckpointsAndTheModelAreTheLeast) {
  const DiskNeed need{.checkpoint_bytes = 100, .checkpoints = 5, .model_bytes = 30};
  const auto complaint = [&](std::int64_t free, std::int64_t files = -1) {
    try {
      return check_disk(need, {.free_bytes = free, .free_files = files}, "/out");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::storage);
      return std::string(error.what());
    }
  };
  EXPECT_EQ(complaint(530), "");
  EXPECT_NE(complaint(529).find("will be full before the run ends"), std::string::npos);
  EXPECT_NE(complaint(230).find("will be full before the run ends"), std::string::npos);
  EXPECT_NE(complaint(229).find("the disk has no room for this run"), std::string::npos);
  EXPECT_NE(complaint(530, 20).find("inodes"), std::string::npos);
  EXPECT_EQ(complaint(-1), "") << "a file system that does not say";
  EXPECT_NE(complaint(229).find("230 B at least, for two checkpoints of 100 B and the final model of 30 B"),
            std::string::npos)
      << complaint(229);
  EXPECT_NE(complaint(530, 83).find("  expected: 84 files (inodes)\n  found:    83 free\n  where:    /out\n"),
            std::string::npos)
      << complaint(530, 83);
  EXPECT_EQ(complaint(530, 84), "") << "four for each of five checkpoints";
  const DiskNeed one{.checkpoint_bytes = 100, .checkpoints = 1, .model_bytes = 30};
  EXPECT_EQ(one.least(), 130);
  EXPECT_EQ(check_disk(one, {.free_bytes = 130, .free_files = -1}, "/out"), "");
}

TEST(DiskState, OfAFolderIsThere) {
  EXPECT_GT(disk_state("/tmp").free_bytes, 0);
  EXPECT_EQ(disk_state("/nowhere/at/all").free_bytes, -1);
}

}  // namespace
}  // namespace octet::train
