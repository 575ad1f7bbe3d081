// How the next start of a run finds what this one has saved, for every beginning that a configuration can
// wish.
#include "../src/supervise/resumption.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "checkpoint/sample.h"

namespace octet::supervise {
namespace {

class ResumptionOfRuns : public testing::Test {
 protected:
  void SetUp() override {
    checkpoint::save_sample(folder_.path(), 10, 1);
    saved_.saved = folder_ / "checkpoint-10";
    saved_.saved_step = 10;
    saved_.total_steps = 20;
  }
  Strings named() const { return {"resume_from_checkpoint=" + saved_.saved}; }
  Strings asked(std::optional<std::string> wish, bool overwrites) const {
    config::Config config;
    config.resume_from_checkpoint = std::move(wish);
    config.overwrite_output_dir = overwrites;
    return resume_overrides(config, saved_);
  }

  checkpoint::Scratch folder_;
  report::Progress saved_;
};

TEST_F(ResumptionOfRuns, ARunThatTakesItsNewestCheckpointNeedsNoWord) {
  for (const bool overwrites : {false, true}) {
    EXPECT_TRUE(asked("true", overwrites).empty());
    EXPECT_TRUE(asked("auto", overwrites).empty());
  }
  EXPECT_TRUE(asked(std::nullopt, false).empty());
}

TEST_F(ResumptionOfRuns, AnotherBeginningWasMeantForTheFirstStart) {
  EXPECT_EQ(asked("false", false), named());
  EXPECT_EQ(asked("/elsewhere/checkpoint-3", false), named());
  EXPECT_EQ(asked("/elsewhere/checkpoint-3", true), named());
}

TEST_F(ResumptionOfRuns, ARunThatOverwritesFindsItselfUntilItsLastStepIsSaved) {
  EXPECT_TRUE(asked(std::nullopt, true).empty());
  saved_.total_steps = 11;
  EXPECT_TRUE(asked(std::nullopt, true).empty());
  // All is trained and the final model is missing: without a word it would begin afresh.
  saved_.total_steps = 10;
  EXPECT_EQ(asked(std::nullopt, true), named());
}

TEST_F(ResumptionOfRuns, WhatIsNotSavedOrDoesNotHoldIsNotNamed) {
  report::Progress none = saved_;
  none.saved_step = -1;
  config::Config config;
  config.resume_from_checkpoint = "false";
  EXPECT_TRUE(resume_overrides(config, none).empty());
  std::filesystem::resize_file(folder_ / "checkpoint-10/checkpoint.h5", 100);
  EXPECT_TRUE(asked("false", false).empty());
}

}  // namespace
}  // namespace octet::supervise
