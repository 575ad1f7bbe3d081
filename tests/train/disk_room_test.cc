// Disk space, compared with sums that this file computes.
#include "octet/train/disk.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "support/program.h"

namespace octet::train::disk_room_test {
namespace {

constexpr std::int64_t kBlock = 4096;

config::Config saving(double every) {
  config::Config config;
  config.save_steps = every;
  return config;
}

DiskFacts facts(std::int64_t first, std::int64_t total, std::int64_t there = 0) {
  return {.files = {.checkpoint = {.tensors = 0, .data_file = 10 * kBlock - 1, .manifest = 1},
                    .model_weights = 5 * kBlock,
                    .model_others = 1},
          .first_step = first,
          .total_steps = total,
          .steps_per_epoch = 30,
          .between_evaluations = 25,
          .checkpoints = there,
          .block = kBlock};
}

std::int64_t checkpoints(const config::Config& config, std::int64_t first, std::int64_t total,
                         std::int64_t there = 0) {
  return disk_need(config, facts(first, total, there)).checkpoints.most;
}

TEST(DiskNeed, CountsTheBlocksThatFilesTake) {
  const DiskNeed need = disk_need(saving(10), facts(0, 10));
  EXPECT_EQ(need.checkpoint_bytes, 12 * kBlock) << "ten of data, one of the manifest, one of the folder";
  EXPECT_EQ(need.model_bytes, 6 * kBlock);
  EXPECT_EQ(need.all(), 18 * kBlock);
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
  config.save_strategy = "best";
  EXPECT_EQ(checkpoints(config, 0, 100), 4) << "each evaluation may be the best so far";
  config.save_total_limit = 1;
  EXPECT_EQ(checkpoints(config, 0, 100), 3) << "the best one stays";
  config.save_strategy = "steps";
  config.save_total_limit = 2;
  EXPECT_EQ(checkpoints(config, 0, 100), 3) << "a new one is whole before an old one goes";
  EXPECT_EQ(checkpoints(config, 50, 100, 2), 1);
  EXPECT_EQ(checkpoints(config, 50, 100, 7), 1);
}

TEST(DiskNeed, TheFullestMomentIsWithANewCheckpointOrWithTheModel) {
  config::Config config = saving(10);
  config.save_total_limit = 1;
  EXPECT_EQ(disk_need(config, facts(0, 100)).all(), 24 * kBlock) << "two checkpoints, before one goes";
  DiskFacts large = facts(0, 100);
  large.files.model_weights = 20 * kBlock;
  EXPECT_EQ(disk_need(config, large).all(), 33 * kBlock) << "one, and the model";
  config.load_best_model_at_end = true;
  EXPECT_EQ(disk_need(config, large).all(), 45 * kBlock) << "the best one stays";
}

TEST(DiskNeed, WhatIsOverwrittenGoesWhenTheFirstCheckpointIsThere) {
  DiskFacts over = facts(0, 20);
  over.going_bytes = 5 * kBlock;
  EXPECT_EQ(disk_need(saving(10), over).all(), (12 + 12 + 6 - 5) * kBlock);
  over.going_bytes = 100 * kBlock;
  EXPECT_EQ(disk_need(saving(10), over).all(), 12 * kBlock) << "the first one is written beside the old ones";
}

TEST(DiskNeed, OfSavesThatFollowFromWhatIsMeasuredTheFirstTwoAreKnown) {
  DiskFacts measured = facts(0, 100);
  measured.measured_saves = true;
  const DiskNeed need = disk_need(saving(1), measured);
  EXPECT_EQ(need.all(), 30 * kBlock);
  const DiskPlace output{.folder = "/out", .disk = {.free_bytes = 30 * kBlock}};
  EXPECT_EQ(check_disk(need, output), "") << "nobody knows whether it will be full";
  config::Config limited = saving(1);
  limited.save_total_limit = 3;
  EXPECT_EQ(disk_need(limited, measured).all(), (3 * 12 + 12) * kBlock) << "so many are kept";
}

DiskPlace place(std::int64_t free, std::int64_t files = -1, std::uint64_t device = 1) {
  return {.folder = "/out", .disk = {.free_bytes = free, .free_files = files, .device = device}};
}

std::string answer(const DiskNeed& need, const DiskPlace& output,
                   const std::optional<DiskPlace>& fallback = std::nullopt) {
  try {
    return check_disk(need, output, fallback);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    return std::string("error: ") + error.what();
  }
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const DiskNeed kFive{.checkpoint_bytes = 100, .checkpoints = {5, 5}, .model_bytes = 30};

TEST(CheckDisk, TwoCheckpointsAndTheModelAreTheLeast) {
  EXPECT_EQ(answer(kFive, place(530)), "");
  EXPECT_TRUE(has(answer(kFive, place(529)), "will be full before the run ends"));
  EXPECT_TRUE(has(answer(kFive, place(529)), "5 checkpoints of 100 B and the model of 30 B take 530 B"));
  EXPECT_TRUE(has(answer(kFive, place(230)), "will be full before the run ends"));
  EXPECT_TRUE(has(answer(kFive, place(229)), "error: the disk has too little space for this run\n"));
  EXPECT_TRUE(has(answer(kFive, place(229)),
                  "230 B at least, for 2 checkpoints of 100 B and the final model of 30 B"))
      << answer(kFive, place(229));
  EXPECT_EQ(answer(kFive, place(-1)), "") << "a file system that does not say";
  EXPECT_TRUE(has(answer(kFive, place(530, 83)),
                  "  expected: 84 files (inodes)\n  found:    83 free\n  where:    /out\n"));
  EXPECT_EQ(answer(kFive, place(530, 84)), "") << "four for each of five checkpoints";
  const DiskNeed one{.checkpoint_bytes = 100, .checkpoints = {1, 1}, .model_bytes = 30};
  EXPECT_EQ(one.least(), 130);
  EXPECT_EQ(answer(one, place(130)), "");
  const DiskNeed kept_one{.checkpoint_bytes = 100, .checkpoints = {2, 1}, .model_bytes = 30};
  EXPECT_TRUE(has(answer(kept_one, place(199)),
                  "200 B at least, for 2 checkpoints of 100 B, one of which is removed before the final "
                  "model of 30 B is written"))
      << answer(kept_one, place(199));
}

TEST(CheckDisk, CheckpointsMayGoToTheFallbackAndTheModelMayNot) {
  const std::string helped = answer(kFive, place(30), place(200, -1, 2));
  EXPECT_TRUE(has(helped, "are written to save_fallback_dir")) << helped;
  EXPECT_FALSE(has(helped, "error:")) << helped;
  EXPECT_TRUE(has(answer(kFive, place(29), place(200, -1, 2)), "error:")) << "the model has no room";
  EXPECT_TRUE(has(answer(kFive, place(30), place(199, -1, 2)), "error:")) << "nor have the checkpoints there";
  EXPECT_TRUE(has(answer(kFive, place(30), place(199, -1, 2)), "30 B free, and 199 B in save_fallback_dir"));
  EXPECT_TRUE(has(answer(kFive, place(229), place(229, -1, 1)), "error:")) << "it is the same disk";
}

TEST(DiskState, OfAFolderIsThere) {
  EXPECT_GT(disk_state("/tmp").free_bytes, 0);
  EXPECT_GT(disk_state("/tmp").block, 0);
  EXPECT_EQ(disk_state("/nowhere/at/all").free_bytes, -1);
  EXPECT_EQ(disk_state_for("/tmp/nowhere/at/all").device, disk_state("/tmp").device);
  EXPECT_GT(disk_state_for("/tmp/nowhere/at/all").free_bytes, 0);
}

TEST(BytesOfAFolder, AreThoseOfItsFiles) {
  const test::TemporaryFolder folder("bytes");
  test::spill(folder / "a", "12345");
  test::spill(folder / "b", "1");
  EXPECT_EQ(bytes_of_folder(folder.path()), 6);
  EXPECT_EQ(bytes_of_folder(folder / "none"), 0);
}

}  // namespace
}  // namespace octet::train::disk_room_test
