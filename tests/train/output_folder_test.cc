// The output folder between two runs.
#include "../src/train/saves/output_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "octet/base/error.h"
#include "support/program.h"

namespace octet::train::output_folder_test {
namespace {

namespace fs = std::filesystem;
using test::spill;

TEST(OutputFolder, NamesOfUnfinishedFilesAreKnown) {
  for (const char* name : {"trainer_state.json.tmp-123", "train_results.json.tmp-7",
                           "config.resolved.yaml.tmp-1", "model-00001-of-00002.safetensors.tmp-44",
                           "training_loss.svg.tmp-9", ".write-test.tmp-1", "trainer_log.jsonl.tmp-12"}) {
    EXPECT_TRUE(is_left_behind(name)) << name;
  }
  for (const char* name : {"trainer_state.json", "notes.tmp-1", "trainer_state.json.tmp-", "a.json.tmp-1b",
                           "checkpoint-5.tmp-12-34", "model.safetensors", "x.json.tmp-1.json"}) {
    EXPECT_FALSE(is_left_behind(name)) << name;
  }
}

TEST(OutputFolder, UnfinishedFilesGoAndOthersStay) {
  const test::TemporaryFolder folder("output");
  for (const char* name : {"trainer_state.json.tmp-123", "mine.txt", "trainer_state.json"})
    spill(folder / name, "x");
  fs::create_directories(folder / "a.json.tmp-5");
  const OutputFolder output(folder.path(), "/nowhere");
  EXPECT_FALSE(fs::exists(folder / "trainer_state.json.tmp-123"));
  for (const char* name : {"mine.txt", "trainer_state.json", "a.json.tmp-5"})
    EXPECT_TRUE(fs::exists(folder / name));
}

TEST(OutputFolder, TheFolderOfTheBaseModelIsRefusedUntouched) {
  const test::TemporaryFolder folder("output");
  spill(folder / "model/model.safetensors", "x");
  fs::create_directory_symlink(folder / "model", folder / "other-name");
  for (const char* name : {"model", "model/", "other-name", "model/../model"}) {
    EXPECT_THROW(OutputFolder(folder / name, folder / "model"), Error) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "model"), {}), 1);
  EXPECT_NO_THROW(OutputFolder(folder / "model/out", folder / "model"));
}

TEST(OutputFolder, CheckpointsAreSetAsideAndThenRemovedAndNothingElse) {
  const test::TemporaryFolder folder("output");
  const OutputFolder output(folder.path(), "/nowhere");
  output.set_checkpoints_aside();
  EXPECT_FALSE(fs::exists(folder / "overwritten")) << "there was nothing";
  for (const char* name :
       {"checkpoint-5/manifest.json", "checkpoint-10/checkpoint.h5", "mine/a",
        "checkpoint-7/pytorch_model.bin", "overwritten/mine", "overwritten/checkpoint-5/manifest.json",
        "overwritten/checkpoint-5/old", "overwritten/checkpoint-8/of_a_user"})
    spill(folder / name, "x");
  output.set_checkpoints_aside();
  EXPECT_FALSE(fs::exists(folder / "checkpoint-5"));
  EXPECT_TRUE(fs::exists(folder / "overwritten/checkpoint-5/manifest.json"));
  EXPECT_FALSE(fs::exists(folder / "overwritten/checkpoint-5/old"));
  EXPECT_TRUE(fs::exists(folder / "overwritten/checkpoint-10/checkpoint.h5"));
  output.remove_set_aside();
  EXPECT_FALSE(fs::exists(folder / "overwritten/checkpoint-10"));
  // Files of other programs are not deleted.
  for (const char* name :
       {"overwritten/mine", "overwritten/checkpoint-8/of_a_user", "checkpoint-7/pytorch_model.bin", "mine/a"})
    EXPECT_TRUE(fs::exists(folder / name)) << name;
  fs::remove_all(folder / "overwritten/checkpoint-8");
  fs::remove(folder / "overwritten/mine");
  output.remove_set_aside();
  EXPECT_FALSE(fs::exists(folder / "overwritten"));
}

}  // namespace
}  // namespace octet::train::output_folder_test
