// Disks that accept no checkpoint, and disks that return other bytes than were written. The run continues,
// retries, reports it, and keeps every intact checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "cli/saves.h"

namespace octet::test::failed_saves_test {
namespace {

namespace fs = std::filesystem;

// A run with an output folder that is full from the start.
class FailedSaves : public testing::Test {
 protected:
  FailedSaves() : folder_("failed_saves") { spill(output() + "/disk-is-full", ""); }
  std::string output() const { return folder_ / "run"; }
  Outcome run(const std::string& more, const std::string& beside = "true") const {
    return shell("(" + beside + ") & OCTETRUN_FAILPOINT=full_disk " OCTET_TRAINER " " +
                 Task::get().train(output(), more));
  }
  TemporaryFolder folder_;
};

TEST_F(FailedSaves, TheRunGoesOnTriesAgainAndSavesWhenThereIsRoom) {
  const Outcome ended = run("max_steps=400 save_steps=200 max_failed_saves=1000 save_async=false",
                            "until grep -qs could.not.be.saved " + output() +
                                "/training.log; do sleep 0.05; done; rm " + output() + "/disk-is-full");
  expect_success(ended);
  expect_every_step(output(), 400);
  const auto steps = checkpoints_of(output());
  ASSERT_GE(steps.size(), 2u);
  EXPECT_GT(steps[0], 200);
  EXPECT_EQ(steps[0] % 20, 0) << "a tenth of the steps between saves later";
  EXPECT_LT(steps[0], 400) << "well before the next turn";
  EXPECT_EQ(steps_of(output()).at(400)["failed_saves"].get<std::int64_t>(), (steps[0] - 200) / 20);
  EXPECT_TRUE(says(ended, "failed saves")) << ended.err;
}

TEST_F(FailedSaves, ARunWhoseLastSaveFailsEndsWithItsOwnCodeAfterOneMoreAttempt) {
  const Outcome ended = run("save_steps=5 max_failed_saves=100");
  EXPECT_EQ(ended.code, 78) << ended.both();
  EXPECT_EQ(errors_in(ended), 1) << ended.err;
  EXPECT_TRUE(says(ended, "one more attempt")) << ended.err;
  expect_every_step(output(), 12);
  EXPECT_FALSE(fs::exists(output() + "/model.safetensors"));
}

TEST_F(FailedSaves, TooManyInARowEndTheRun) {
  const Outcome ended = run("max_steps=500 save_steps=10 max_failed_saves=3 save_async=false");
  EXPECT_EQ(ended.code, 78) << ended.both();
  EXPECT_TRUE(says(ended, "5 saves in a row that failed")) << "three, and the two of the end: " << ended.err;
  EXPECT_EQ(steps_of(output()).rbegin()->first, 12);
}

TEST_F(FailedSaves, AStopThatCannotBeSavedIsNotCalledSaved) {
  const Outcome ended =
      shell("OCTETRUN_FAILPOINT=full_disk " OCTET_TRAINER " " +
            Task::get().train(output(), "max_steps=5000 save_steps=5000") + " & job=$!; until [ -s " +
            output() + "/trainer_log.jsonl ]; do sleep 0.02; done; kill -USR2 $job; wait $job");
  EXPECT_EQ(ended.code, 78) << ended.both();
}

TEST_F(FailedSaves, ASecondPlaceTakesThemAndTheNextStartGoesOnFromThere) {
  const std::string keys = "save_steps=5 save_fallback_dir=" + (folder_ / "second") + " ";
  const Outcome first = run(keys + "max_steps=7");
  expect_success(first);
  EXPECT_TRUE(says(first, "it is in save_fallback_dir")) << first.err;
  EXPECT_EQ(checkpoints_of(output()), std::vector<std::int64_t>());
  const Outcome second = run(keys);
  expect_success(second);
  EXPECT_TRUE(says(second, "Continuing from global step 7")) << second.err;
  expect_every_step(output(), 12);
  // Each run has its own subfolder, so that runs may share the fallback folder.
  ASSERT_EQ(std::distance(fs::directory_iterator(folder_ / "second"), {}), 1);
  EXPECT_EQ(checkpoints_of(fs::directory_iterator(folder_ / "second")->path().string()),
            (std::vector<std::int64_t>{5, 7, 10, 12}));
  // A run that starts again ignores the checkpoints there.
  const Outcome anew = run(keys + "overwrite_output_dir=true seed=7");
  expect_success(anew);
  EXPECT_FALSE(says(anew, "Continuing from")) << anew.err;
}

// All ranks agree on a failure, no matter which rank detected it.
TEST_F(FailedSaves, OfSeveralRanksAllGoOn) {
  const Outcome ended =
      shell("OCTETRUN_FAILPOINT=full_disk " OCTET_SOURCE_DIR "/launch/mpirun -np 3 " OCTET_TRAINER " " +
            Task::get().train(output(), "save_steps=5 save_fallback_dir=" + (folder_ / "second")));
  expect_success(ended);
  expect_every_step(output(), 12);
}

// Runs the trainer on a disk that flips a bit in some writes and reports success.
Outcome on_flipping_disk(const std::string& words, const std::string& arguments) {
  return shell("LD_PRELOAD=" OCTET_FLIPPING_DISK " BAD_DISK_FLIP=" + words + " " OCTET_TRAINER " " +
               arguments);
}

TEST(FlippingDisk, WhatDoesNotHoldIsSavedAgainAndTakesNoGoodOnesPlace) {
  const TemporaryFolder folder("flips");
  const std::string output = folder / "run";
  const Outcome run = on_flipping_disk("checkpoint-4.,checkpoint-6.",
                                       Task::get().train(output, "save_steps=2 save_total_limit=2"));
  expect_success(run);
  EXPECT_TRUE(says(run, "the checkpoint of step 4 was saved, but is damaged")) << run.err;
  EXPECT_TRUE(says(run, "returns other bytes than the program wrote")) << run.err;
  const auto steps = checkpoints_of(output);
  ASSERT_EQ(steps.size(), 2u);
  for (const std::int64_t step : steps)
    EXPECT_EQ(trainer("inspect --verify " + output + "/checkpoint-" + std::to_string(step)).code, 0);
}

TEST(FlippingDisk, TheGoodCheckpointStaysAndIsGoneOnFrom) {
  const TemporaryFolder folder("flips_all");
  const std::string output = folder / "run";
  const std::string arguments =
      Task::get().train(output, "save_steps=2 save_total_limit=1 max_failed_saves=3 save_async=false");
  const Outcome run = on_flipping_disk(
      "checkpoint-3,checkpoint-4,checkpoint-5,checkpoint-6,checkpoint-7,checkpoint-8", arguments);
  EXPECT_EQ(run.code, 78) << run.both();
  EXPECT_EQ(trainer("inspect --verify " + output + "/checkpoint-2").code, 0);
  const Outcome again = trainer(arguments);
  expect_success(again);
  EXPECT_TRUE(says(again, "Continuing from global step 2")) << again.err;
  expect_every_step(output, 12);
}

}  // namespace
}  // namespace octet::test::failed_saves_test
