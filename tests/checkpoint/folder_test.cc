// Names of checkpoints and of temporary folders in an output folder, and the message if no checkpoint is
// valid.
#include "octet/checkpoint/folder.h"

#include <gtest/gtest.h>

#include "sample.h"

namespace octet::checkpoint::folder_test {
namespace {

namespace fs = std::filesystem;

std::string names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

TEST(ListCheckpoints, TakesFoldersThatAreNamedAsTheirStepIsWritten) {
  const Scratch scratch;
  for (const char* name : {"checkpoint-12", "checkpoint-3", "checkpoint-0", "checkpoint-007", "checkpoint--1",
                           "checkpoint-", "checkpoint-5x", "checkpoint-6.tmp-1-2", "Checkpoint-8",
                           "my-checkpoint-9", "checkpoint-99999999999999999999", "checkpoint-+4"})
    fs::create_directories(scratch / name);
  put(scratch / "checkpoint-10", "a file");
  const std::vector<std::pair<std::int64_t, std::string>> found{
      {0, scratch / "checkpoint-0"}, {3, scratch / "checkpoint-3"}, {12, scratch / "checkpoint-12"}};
  EXPECT_EQ(list_checkpoints(scratch.path()), found);
  EXPECT_TRUE(list_checkpoints(scratch / "nowhere").empty());
  EXPECT_ERROR("cannot list an output folder", list_checkpoints(scratch / "checkpoint-10"));
}

TEST(RemoveStale, TakesWhatSavesLeftAndNothingElse) {
  const Scratch scratch;
  for (const char* name : {"checkpoint-6.tmp-1-2", "checkpoint-7.tmp-pruned", "checkpoint-8", "other.tmp-3",
                           "checkpoint-x.tmp-1", "checkpoint-9.old", "checkpoint-9.tmp-mine",
                           "checkpoint-9.tmp-1-2-3", "checkpoint-6.tmp-1-2-old"})
    fs::create_directories(scratch / (std::string(name) + "/inside"));
  testing::internal::CaptureStderr();
  remove_stale(scratch.path());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(names_in(scratch.path()),
            "checkpoint-8 checkpoint-9.old checkpoint-9.tmp-1-2-3 checkpoint-9.tmp-mine checkpoint-x.tmp-1 "
            "other.tmp-3");
  for (const char* name : {"checkpoint-6.tmp-1-2", "checkpoint-7.tmp-pruned"})
    EXPECT_NE(said.find("removing the files of an interrupted save: " + (scratch / name)), std::string::npos)
        << said;
}

std::string why_not(const std::string& path) {
  try {
    return "taken: " + resolve_checkpoint(path);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::no_valid_checkpoint);
    return e.problem().found;
  }
}

TEST(Resolve, SaysOfEveryCheckpointWhyItIsNotTaken) {
  const Scratch scratch;
  EXPECT_EQ(why_not(scratch.path()), "none");
  EXPECT_EQ(why_not(scratch / "nowhere"), "no such folder");
  fs::create_directories(scratch / "checkpoint-5");
  save_sample(scratch.path(), 4, 1);
  fs::rename(scratch / "checkpoint-4", scratch / "checkpoint-6");
  const std::string both = why_not(scratch.path());
  EXPECT_EQ(
      both.find(
          "a checkpoint has the name of another one\n  expected: checkpoint-4, by the step that it holds\n"
          "  found:    checkpoint-6\n"),
      0u)
      << both;
  EXPECT_NE(both.find("\nthis is not a complete checkpoint\n  expected: manifest.json and checkpoint.h5\n"
                      "  found:    no manifest\n"),
            std::string::npos)
      << both;
  fs::rename(scratch / "checkpoint-6", scratch / "kept");
  EXPECT_EQ(why_not(scratch / "kept"), "taken: " + (scratch / "kept")) << "a name that says no step";
}

TEST(Rotate, WhatHasTheNameOfAnotherStepNeitherCountsNorGoes) {
  const Scratch scratch;
  for (const std::int64_t step : {1, 2, 3, 4}) save_sample(scratch.path(), step, 1);
  fs::rename(scratch / "checkpoint-4", scratch / "checkpoint-9");
  put(scratch / "checkpoint-3/manifest.json", "{}");
  rotate(scratch.path(), 1, "");
  EXPECT_EQ(names_in(scratch.path()), "checkpoint-2 checkpoint-3 checkpoint-9");
  rotate(scratch.path(), 0, "");
  EXPECT_EQ(names_in(scratch.path()), "checkpoint-2 checkpoint-3 checkpoint-9") << "0 keeps all";
}

}  // namespace
}  // namespace octet::checkpoint::folder_test
