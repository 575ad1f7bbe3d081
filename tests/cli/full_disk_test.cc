// A disk that stays full ends the run with one message, and what was saved before holds.
#include <gtest/gtest.h>

#include "cli/task.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;

TEST(FullDisk, ALimitOnTheSizeOfFilesEndsTheRunWithOneMessage) {
  const TemporaryFolder folder("limit");
  // 64 blocks of 512 bytes: the log fits, a checkpoint does not. Alone, for MPI itself needs larger files.
  const Outcome run = shell("ulimit -f 64; " OCTET_TRAINER " " + Task::get().train(folder / "run"));
  EXPECT_EQ(run.code, 78) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("File too large"), std::string::npos) << run.err;
  EXPECT_FALSE(fs::exists(folder / "run/checkpoint-5"));
}

// A small file system of its own, where this process may mount one.
class SmallDisk {
 public:
  SmallDisk() : folder_("disk") {
    mounted_ = shell("mount -t tmpfs -o size=3200k tmpfs " + folder_.path()).code == 0;
  }
  ~SmallDisk() {
    if (mounted_) shell("umount " + folder_.path());
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_ = false;
};

TEST(FullDisk, TheCheckpointsBeforeHoldAndTheRunGoesOnWhenThereIsRoom) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a file system";
  const std::string output = disk.path() + "/run", run_arguments = Task::get().train(output, "save_steps=2");
  const Outcome run = trainer(run_arguments, 3);
  EXPECT_EQ(run.code, 78) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("free some disk space"), std::string::npos) << run.err;
  ASSERT_TRUE(fs::exists(output + "/checkpoint-2")) << run.both();
  EXPECT_EQ(trainer("inspect " + output + "/checkpoint-2 --verify").code, 0);
  // An older checkpoint goes, the run goes on: one checkpoint and the final model fit.
  fs::remove_all(output + "/checkpoint-2");
  const Outcome again = trainer(Task::get().train(output, "save_steps=12 save_total_limit=1"), 3);
  expect_success(again);
  EXPECT_NE(again.err.find("Continuing from global step"), std::string::npos) << again.err;
  expect_every_step(output, 12);
}

}  // namespace
}  // namespace octet::test
