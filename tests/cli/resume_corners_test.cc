// Resuming from a checkpoint under changed conditions: other data, other steps, other formats of messages.
#include <filesystem>

#include "cli/saves.h"

namespace octet::test::resume_corners_test {
namespace {

namespace fs = std::filesystem;

/// A run of seven steps, and other runs that resume from copies of it.
class GoesOn : public testing::Test {
 protected:
  GoesOn() : folder_("goes_on") {}
  void begin(const std::string& keys) {
    expect_success(trainer(Task::get().train(folder_ / "first", "save_steps=7 " + keys)));
    fs::remove_all(folder_ / "first/checkpoint-12");
  }
  Outcome go_on(const std::string& keys, int ranks = 0) {
    const std::string output = folder_ / ("run" + std::to_string(++runs_));
    fs::copy(folder_ / "first", output, fs::copy_options::recursive);
    for (const char* final_weights : {"/model.safetensors", "/train_results.json"})
      fs::remove(output + final_weights);
    const Outcome run = trainer(Task::get().train(output, keys), ranks);
    expect_success(run);
    EXPECT_TRUE(says(run, "Continuing from global step 7")) << run.err;
    EXPECT_EQ(steps_of(output).rbegin()->first, 12);
    return run;
  }
  TemporaryFolder folder_;
  int runs_ = 0;
};

TEST_F(GoesOn, OtherDataAndOtherSizesOfAStepAreSaid) {
  begin("");
  const std::string other_data = "the training data differ from the data of the checkpoint";
  std::string rows = slurp(Task::get().data());
  rows[rows.rfind("\"content\"") + 13] = '#';
  spill(folder_ / "other.jsonl", rows);
  EXPECT_TRUE(says(go_on("dataset=" + (folder_ / "other.jsonl")), other_data));
  const Outcome same = go_on("");
  EXPECT_FALSE(says(same, other_data)) << same.err;
  EXPECT_FALSE(says(same, "samples from here on")) << same.err;
  const Outcome smaller = go_on("global_batch_size=12");
  EXPECT_TRUE(says(
      smaller,
      "a step trains 12 samples from here on, instead of 24: the run continues at the same place in the data "
      "and ends after step 12; set global_batch_size to keep the number of samples with any number of ranks"))
      << smaller.err;
}

// State that only FP8 or narrow wire formats use may be missing or left over.
TEST_F(GoesOn, ScalesAndLossesOfWiresComeAndGo) {
  const std::string few = "global_batch_size=8 ", again = "the FP8 scales start from new values";
  begin(few + "bf16=true fp8=true fp8_recipe=delayed");
  EXPECT_FALSE(says(go_on(few + "bf16=true"), again));
  EXPECT_TRUE(says(go_on(few + "bf16=true fp8=true fp8_recipe=delayed fp8_amax_history_len=32"), again));
  fs::remove_all(folder_ / "first");
  begin(few + "bf16=true");
  EXPECT_TRUE(says(go_on(few + "bf16=true fp8=true fp8_recipe=delayed"), again));
  const Outcome narrow = go_on(few + "bf16=true reduce_dtype=int8 error_feedback=true", 2);
  EXPECT_TRUE(
      says(narrow,
           "error_feedback starts from zero: the checkpoint has no rounding errors for this number of ranks"))
      << narrow.err;
}

}  // namespace
}  // namespace octet::test::resume_corners_test
