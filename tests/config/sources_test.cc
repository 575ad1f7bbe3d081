// Keys with several sources, paths, and trainers that are only recognised by name.

#include <filesystem>

#include "config/support.h"
#include "support/temporary_folder.h"

namespace octet::config::test::sources_test {
namespace {

TEST(OtherTrainers, AreRecognisedByName) {
  const std::string tune = refusal("tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer}");
  EXPECT_SAYS(tune, "torchtune");
  EXPECT_SAYS(tune, "test.yaml:4");
  EXPECT_SAYS(tune, "learning_rate (optimizer.lr)");
  try {
    load({"train_configs/llama3_8b.toml"}, quiet());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_SAYS(std::string(e.what()), "torchtitan");
    EXPECT_SAYS(std::string(e.what()), "cutoff_len ([training] seq_len)");
  }
}

// An unsupported value is only an error if no stronger source replaces it.
TEST(Sources, ARefusedValueOfAFileCanBeReplaced) {
  EXPECT_EQ(read("finetuning_type: oft", {"finetuning_type=full"}).config.finetuning_type, "full");
  EXPECT_EQ(read("save_strategy: best", {"save_strategy=null"}).config.save_strategy, "steps");
  EXPECT_NO_THROW(read("use_galore: true", {"use_galore=false"}));
  EXPECT_EQ(read("tuning: {mode: oft}", {"tuning.mode=full"}).config.finetuning_type, "full");
  EXPECT_SAYS(refusal("finetuning_type: full", {"finetuning_type=oft"}), "command line");
  EXPECT_SAYS(refusal("optim: adafactor\nuse_galore: true"), "is not supported");
}

TEST(Sources, NullOnTheCommandLineTakesBackWhatAFileSaysInItsOwnWords) {
  const std::string file = "train: {max_steps: 7, learning_rate: 0.5}\ndata: {train_path: d}\n";
  const Config c =
      load_text(file, "play.yaml", {"train.max_steps=null", "train.learning_rate=null"}, quiet(false)).config;
  EXPECT_EQ(c.max_steps, -1);
  EXPECT_EQ(c.learning_rate, Config().learning_rate);
}

TEST(Sources, TheSameValueTwiceIsOneValue) {
  EXPECT_EQ(read("train: {learning_rate: 1e-4}\nlearning_rate: 0.0001").config.learning_rate, 1e-4);
  EXPECT_SAYS(refusal("train: {learning_rate: 1e-4}\nlearning_rate: 0.0002"), "given twice");
}

TEST(Sources, AListIsReferredToAsAWhole) {
  EXPECT_EQ(read("lora_target: [a, b]\nadditional_target: ${lora_target}\nfinetuning_type: lora")
                .config.additional_target,
            (Strings{"a", "b"}));
}

// The shell expands ~ only at the beginning of a word.
TEST(Paths, OfTheHomeFolderAreFound) {
  const LoadOptions options{.for_training = false, .environment = {{"HOME", "/home/me"}}};
  const Config c =
      load_text("model_name_or_path: ~/m\ndataset: [~/a, b/~]\noutput_dir: ~/o", "t.yaml", {}, options)
          .config;
  EXPECT_EQ(c.model_name_or_path, "/home/me/m");
  EXPECT_EQ(c.dataset, (Strings{"/home/me/a", "b/~"}));
  EXPECT_EQ(c.output_dir, "/home/me/o");
}

TEST(Paths, AModelOfTheHubIsFoundInItsCache) {
  const octet::test::TemporaryFolder folder("hub");
  const std::string& hub = folder.path();
  std::filesystem::create_directories(hub + "/models--org--m/snapshots/abc");
  std::filesystem::create_directories(hub + "/models--org--m/refs");
  write_file_atomically(hub + "/models--org--m/refs/main", "abc");
  const LoadOptions options{.for_training = false, .environment = {{"HF_HUB_CACHE", hub}}};
  const Resolved r = load_text("model_name_or_path: org/m", "t.yaml", {}, options);
  EXPECT_EQ(r.config.model_name_or_path, hub + "/models--org--m/snapshots/abc");
  EXPECT_TRUE(notes(r, "is taken from Hugging Face's cache"));
  EXPECT_EQ(load_text("model_name_or_path: org/n", "t.yaml", {}, options).config.model_name_or_path, "org/n");
  EXPECT_EQ(load_text("model_name_or_path: org/m\nmodel_revision: v2", "t.yaml", {}, options)
                .config.model_name_or_path,
            "org/m");
}

}  // namespace
}  // namespace octet::config::test::sources_test
