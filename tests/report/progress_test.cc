#include "octet/report/progress.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "octet/report/reporter.h"
#include "support/program.h"

namespace octet::report::progress_test {
namespace {

TEST(Progress, IsReadAsItWasWritten) {
  const test::TemporaryFolder folder("progress");
  ProgressFile file(folder.path());
  file.write({.job = "j",
              .first_step = 3,
              .step = 123456789,
              .total_steps = 9,
              .step_seconds = 1e-3,
              .saved_step = 7,
              .saved = "/a \"path\"",
              .finished = true});
  file.write({.ranks = 12, .first_step = 3, .step = 5, .saved = "x"});
  const auto read = read_progress(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->ranks, 12);
  EXPECT_EQ(read->first_step, 3);
  EXPECT_EQ(read->step, 5);
  EXPECT_EQ(read->saved_step, -1);
  EXPECT_EQ(read->saved, "x");
  EXPECT_FALSE(read->finished);
}

TEST(Progress, WhatIsNoneIsNotRead) {
  const test::TemporaryFolder folder("none");
  EXPECT_FALSE(read_progress(folder.path()));
  for (const char* text :
       {"", "{", "[1]", "{\"step\": -1}", "{\"first_step\": 5, \"step\": 4}", "{\"step\": \"x\"}"}) {
    test::spill(progress_path(folder.path()), text);
    EXPECT_FALSE(read_progress(folder.path())) << text;
  }
  std::filesystem::remove(progress_path(folder.path()));
  ASSERT_EQ(::mkfifo(progress_path(folder.path()).c_str(), 0600), 0);
  EXPECT_FALSE(read_progress(folder.path()));
  ProgressFile("/nowhere/at/all").write({});  // an impossible path has no effect
}

/// A run of two steps and a checkpoint, in a folder.
void run_in(const std::string& folder, const std::string& status) {
  Reporter reporter({.output_dir = folder, .total_steps = 12, .first_step = 4, .world = 3});
  reporter.step({.step = 5, .seconds = 0.25});
  reporter.step({.step = 6, .seconds = 0.5});
  reporter.saved(5, "there/checkpoint-5");
  EXPECT_FALSE(read_progress(folder) && read_progress(folder)->finished);
  reporter.finish({.status = status});
}

TEST(Progress, OfARunUnderASupervisorIsTold) {
  const test::TemporaryFolder folder("told");
  ::setenv("OCTETRUN_SUPERVISED", "the job", 1);
  run_in(folder.path(), "stopped");
  auto read = read_progress(folder.path());
  ASSERT_TRUE(read);
  EXPECT_FALSE(read->finished) << "a stop is no end";
  run_in(folder.path(), "completed");
  ::unsetenv("OCTETRUN_SUPERVISED");
  read = read_progress(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->job, "the job");
  EXPECT_EQ(read->ranks, 3);
  EXPECT_EQ(read->first_step, 4);
  EXPECT_EQ(read->step, 6);
  EXPECT_EQ(read->total_steps, 12);
  EXPECT_DOUBLE_EQ(read->step_seconds, 0.75);
  EXPECT_EQ(read->saved_step, 5);
  EXPECT_EQ(read->saved, "there/checkpoint-5");
  EXPECT_TRUE(read->finished);
  // A run without a checkpoint has none in its record, and no file is left that claims one.
  run_in(folder.path(), "completed");
  EXPECT_FALSE(std::filesystem::exists(progress_path(folder.path())));
}

}  // namespace
}  // namespace octet::report::progress_test
