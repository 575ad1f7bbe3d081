// A disk that stays full ends the run with one message. Earlier checkpoints stay intact.
#include <gtest/gtest.h>

#include "cli/small_disk.h"

namespace octet::test::full_disk_test {
namespace {

namespace fs = std::filesystem;

TEST(FullDisk, ALimitOnTheSizeOfFilesEndsTheRunWithOneMessage) {
  const TemporaryFolder folder("limit");
  // 64 blocks of 512 bytes: the log fits, a checkpoint does not. On one rank, because MPI needs larger files.
  const Outcome run = shell("ulimit -f 64; " OCTET_TRAINER " " + Task::get().train(folder / "run"));
  EXPECT_EQ(run.code, 78) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("File too large"), std::string::npos) << run.err;
  EXPECT_FALSE(fs::exists(folder / "run/checkpoint-5"));
}

TEST(FullDisk, TheCheckpointsBeforeHoldAndTheRunGoesOnWhenThereIsRoom) {
  const SmallDisk disk(1600);
  if (!disk.mounted()) GTEST_SKIP() << kNoSmallDisk;
  const std::string output = disk.path() + "/run", run_arguments = Task::get().train(output, "save_steps=2");
  const Outcome run = trainer(run_arguments, 3);
  EXPECT_EQ(run.code, 78) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("free some disk space"), std::string::npos) << run.err;
  ASSERT_TRUE(fs::exists(output + "/checkpoint-2")) << run.both();
  EXPECT_EQ(trainer("inspect " + output + "/checkpoint-2 --verify").code, 0);
  // Without an older checkpoint the run continues: one checkpoint and the final model fit.
  fs::remove_all(output + "/checkpoint-2");
  const Outcome again = trainer(Task::get().train(output, "save_steps=12 save_total_limit=1"), 3);
  expect_success(again);
  EXPECT_NE(again.err.find("Continuing from global step"), std::string::npos) << again.err;
  expect_every_step(output, 12);
}

std::int64_t bytes_on_disk(const std::string& folder) {
  return std::stoll(shell("du -sk " + folder).out) * 1024;
}

TEST(NoRoom, EndsTheRunBeforeItsFirstStepAndLeavesNothing) {
  const SmallDisk disk(800);
  if (!disk.mounted()) GTEST_SKIP() << kNoSmallDisk;
  for (const int np : {0, 2}) {
    const Outcome run = trainer(Task::get().train(disk.path() + "/run"), np);
    EXPECT_EQ(run.code, 74) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    for (const char* part :
         {"error: the disk has too little space for this run\n", " at least, for 2 checkpoints of ",
          "  found:    ", "free some disk space, or choose another output_dir"})
      EXPECT_NE(run.err.find(part), std::string::npos) << part << "\n" << run.err;
    EXPECT_EQ(run.err.find("Running training"), std::string::npos) << run.err;
    EXPECT_TRUE(fs::is_empty(disk.path())) << shell("ls -laR " + disk.path()).out;
  }
  // If there is enough room for its files, the run is accepted and finishes.
  const std::string less = Task::get().train(disk.path() + "/run", "save_steps=12 save_total_limit=1");
  expect_success(trainer(less, 2));
}

// A disk one block too small is refused. The size of the run with room for its logs is accepted.
TEST(NoRoom, IsJudgedByTheBytesThatARunLeaves) {
  const TemporaryFolder elsewhere("elsewhere");
  const std::string keys = "save_steps=12 save_total_limit=1 export_dtype=fp32";
  expect_success(trainer(Task::get().train(elsewhere / "run", keys)));
  const std::int64_t checkpoint = bytes_on_disk(elsewhere / "run/checkpoint-12");
  const std::int64_t weights = static_cast<std::int64_t>(fs::file_size(elsewhere / "run/model.safetensors"));
  const SmallDisk small((checkpoint + weights) / 1024);
  if (!small.mounted()) GTEST_SKIP() << kNoSmallDisk;
  EXPECT_EQ(trainer(Task::get().train(small.path() + "/run", keys)).code, 74);
  const std::int64_t others = bytes_on_disk(elsewhere / "run") - checkpoint - weights;
  const SmallDisk enough((checkpoint + weights + others) / 1024 + 256);
  expect_success(trainer(Task::get().train(enough.path() + "/run", keys)));
}

TEST(NoRoom, CheckpointsGoToTheFallbackWhereThatHasSome) {
  const SmallDisk small(450), large(4000);
  if (!small.mounted() || !large.mounted()) GTEST_SKIP() << kNoSmallDisk;
  const std::string keys = "save_steps=6 save_fallback_dir=";
  const Outcome run = trainer(Task::get().train(small.path() + "/run", keys + large.path() + "/more"), 2);
  expect_success(run);
  EXPECT_NE(run.err.find("warning: output_dir has no room for 2 checkpoints of "), std::string::npos)
      << run.err;
  EXPECT_TRUE(fs::exists(small.path() + "/run/model.safetensors"));
  const Outcome none = trainer(Task::get().train(small.path() + "/other", keys + small.path() + "/more"));
  EXPECT_EQ(none.code, 74) << "the same disk is no help\n" << none.both();
}

}  // namespace
}  // namespace octet::test::full_disk_test
