// Messages at the start about an output folder that an earlier run used.
#include "octet/config/config.h"
#include "octet/train/start_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "octet/model/shapes.h"
#include "support/temporary_folder.h"

namespace octet::train::folder_doubts_test {
namespace {

/// The doubts that name a checkpoint folder or overwrite_output_dir.
config::Strings of_folder(const std::string& output_dir, const std::string& keys) {
  const config::Resolved resolved = config::load_text("output_dir: " + output_dir + "\n" + keys, "test.yaml",
                                                      {}, {.for_training = false, .environment = {}});
  config::Strings all = doubts(resolved, model::find_shape("tiny"));
  std::erase_if(all, [](const std::string& line) {
    return line.find("checkpoint-") == std::string::npos && line.find("overwrite") == std::string::npos;
  });
  return all;
}

TEST(DoubtsOfAFolder, CheckpointsThatGoAreToldOfOnlyWhereThereAreSome) {
  const test::TemporaryFolder folder("doubts");
  for (const std::string& output : {folder / "none", folder.path()}) {
    EXPECT_TRUE(of_folder(output, "overwrite_output_dir: true\n").empty());
    EXPECT_TRUE(of_folder(output, "").empty());
  }
  std::filesystem::create_directories(folder / "checkpoint-5");
  std::filesystem::create_directories(folder / "checkpoint-12");
  const std::string newest = folder / "checkpoint-12";
  const config::Strings overwritten = of_folder(folder.path(), "overwrite_output_dir: true\n");
  ASSERT_EQ(overwritten.size(), 1u);
  EXPECT_NE(overwritten[0].find("overwrite_output_dir: the checkpoints of output_dir are deleted"),
            std::string::npos)
      << overwritten[0];
  EXPECT_NE(overwritten[0].find(newest), std::string::npos) << overwritten[0];
  EXPECT_TRUE(overwritten[0].starts_with("test.yaml:2: ")) << overwritten[0];
  EXPECT_TRUE(of_folder(folder.path(), "").empty());
  // A run that starts at step 1 in a folder with checkpoints of another run.
  for (const char* keys : {"resume_from_checkpoint: false\n", "resume_from_checkpoint: 'false'\n"}) {
    const config::Strings stays = of_folder(folder.path(), keys);
    ASSERT_EQ(stays.size(), 1u) << keys;
    EXPECT_TRUE(
        stays[0].starts_with("test.yaml:2: resume_from_checkpoint: false starts from the beginning, but " +
                             newest + " of an earlier run stays"))
        << stays[0];
    EXPECT_TRUE(of_folder(folder / "none", keys).empty());
  }
}

TEST(DoubtsOfAFolder, TheCheckpointThatARunResumesFromIsNamed) {
  const test::TemporaryFolder folder("resumes");
  config::Config config;
  config.output_dir = folder.path();
  EXPECT_EQ(resumption(config), "");
  std::filesystem::create_directories(folder / "checkpoint-5");
  std::filesystem::create_directories(folder / "checkpoint-12");
  EXPECT_TRUE(
      resumption(config).starts_with("output_dir holds " + (folder / "checkpoint-12") +
                                     ": the run resumes from it, and trains nothing if it is complete; "
                                     "to do: "))
      << resumption(config);
  config.resume_from_checkpoint = "false";
  EXPECT_EQ(resumption(config), "");
  config.resume_from_checkpoint.reset();
  config.overwrite_output_dir = true;
  EXPECT_EQ(resumption(config), "");
}

}  // namespace
}  // namespace octet::train::folder_doubts_test
