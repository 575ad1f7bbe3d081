// Folders of models: files that count as weights, and messages on other folders.
#include "octet/runtime/model_folder.h"

#include <gtest/gtest.h>

#include <functional>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/runtime/adapter_file.h"
#include "octet/text/tokenizer.h"
#include "octet/weights/safetensors_writer.h"
#include "support/program.h"

namespace octet::runtime::model_folder_test {
namespace {

using test::spill;
using test::TemporaryFolder;

/// The message of an error of usage; "none" without one.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "none";
}

void expect_holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(ModelFolder, WeightsInOtherFormatsAreNotTakenForNone) {
  for (const char* name : {"pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt", "q4.gguf",
                           "flax_model.msgpack", "tf_model.h5", "weights.safetensors"}) {
    const TemporaryFolder folder("weights");
    spill(folder / "config.json", "{}");
    spill(folder / "training_args.bin", "what a trainer leaves");
    EXPECT_FALSE(has_weights(folder.path())) << "no weights";
    expect_holds(refusal([&] { require_weights(folder.path()); }), "there are no weights to start from");
    spill(folder / name, "");
    const std::string said = refusal([&] { has_weights(folder.path()); });
    expect_holds(said, "in an unsupported format");
    expect_holds(said, "  found:    " + std::string(name) + "\n  where:    " + folder.path());
    spill(folder / "model.safetensors", "");
    EXPECT_TRUE(has_weights(folder.path())) << "those beside it do not matter";
    EXPECT_EQ(refusal([&] { require_weights(folder.path()); }), "none");
  }
}

TEST(ModelFolder, OfAnAdapterIsNoModel) {
  const TemporaryFolder folder("adapter");
  spill(folder / "adapter_config.json", "{}");
  const std::string said = refusal([&] { read_model(folder.path()); });
  expect_holds(said, "the folder has an adapter, but no model");
  expect_holds(said, "merge it into its base with trainer export FOLDER OUT --merge");
  // A whole model with an adapter in its folder is a model.
  spill(folder / "config.json", "{}");
  try {
    read_model(folder.path());
    ADD_FAILURE() << "config.json says nothing";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("has an adapter"), std::string::npos) << error.what();
  }
}

TEST(AdapterFolder, WithoutWeightsSaysWhatLiesThere) {
  const TemporaryFolder folder("no_weights");
  std::string said = refusal([&] { AdapterFile file(folder.path()); });
  expect_holds(said,
               "the weights of the adapter do not exist\n  expected: adapter_model.safetensors\n  where:");
  spill(folder / "adapter_model.bin", "");
  said = refusal([&] { AdapterFile file(folder.path()); });
  expect_holds(said, "  found:    adapter_model.bin\n  where:    " + folder.path());
  spill(folder / "adapter_model.safetensors", "broken");
  said = refusal([&] { AdapterFile file(folder.path()); });
  expect_holds(said, folder / "adapter_model.safetensors");
}

/// A folder with a small model that has these values in its head and embedding.
struct SmallModel : TemporaryFolder {
  SmallModel(bool tied, const std::vector<float>& table, const std::vector<float>& head)
      : TemporaryFolder("heads") {
    Json config = read_json(std::string(OCTET_SOURCE_DIR) + "/tests/golden/models/llama3/config.json");
    config["tie_word_embeddings"] = tied;
    spill(*this / "config.json", config.dump());
    std::vector<float> a = table, b = head;
    std::vector<TensorSlice> slices;
    const auto size = [](const std::vector<float>& of) { return static_cast<std::int64_t>(of.size()); };
    if (!a.empty())
      slices.push_back({"model.embed_tokens.weight", DType::f32, {size(a), 1}, 0, size(a), a.data()});
    if (!b.empty()) slices.push_back({"lm_head.weight", DType::f32, {size(b), 1}, 0, size(b), b.data()});
    weights::write_safetensors(*this / "model.safetensors", slices);
  }
  /// Returns whether the model ties its head, and the text on the screen.
  std::pair<bool, std::string> read() const {
    testing::internal::CaptureStderr();
    const bool tied = read_model(path()).tied;
    return {tied, testing::internal::GetCapturedStderr()};
  }
};

// As transformers 5: config.json's word counts unless the files hold two tables that differ.
TEST(ModelFolder, AHeadOfItsOwnInTheFilesIsNotDropped) {
  const std::vector<float> one{1, 2, 3}, other{1, 2, 4}, more{1, 2, 3, 4};
  EXPECT_EQ(SmallModel(true, one, one).read(), (std::pair<bool, std::string>{true, ""}));
  EXPECT_EQ(SmallModel(true, one, {}).read(), (std::pair<bool, std::string>{true, ""}));
  EXPECT_EQ(SmallModel(false, one, other).read(), (std::pair<bool, std::string>{false, ""}));
  const auto [tied, said] = SmallModel(true, one, other).read();
  EXPECT_FALSE(tied);
  expect_holds(said, "'lm_head.weight'");
  expect_holds(said, "tie_word_embeddings");
  EXPECT_FALSE(SmallModel(true, one, more).read().first) << "and is refused for its shape";
}

TEST(ModelFolder, FilesThatDisagreeAreSaid) {
  const auto said = [](const char* config, const char* generation,
                       const std::function<void(const std::string&)>& more) {
    const SmallModel folder(false, {1}, {1});
    spill(folder / "config.json", config);
    spill(folder / "generation_config.json", generation);
    more(folder.path());
    const text::Tokenizer tokenizer =
        text::Tokenizer::from_folder(std::string(OCTET_SOURCE_DIR) + "/tests/golden/tokenizers/llama3");
    testing::internal::CaptureStderr();
    model::Architecture architecture;
    architecture.vocabulary = 500;
    try {
      require_fit(tokenizer, architecture, folder.path());
    } catch (const Error&) {  // more tokens than rows
    }
    return testing::internal::GetCapturedStderr();
  };
  const auto nothing = [](const std::string&) {};
  EXPECT_EQ(said("{}", "{}", nothing), "");
  EXPECT_EQ(said(R"({"dtype": "float32"})", "{}", nothing), "");
  expect_holds(said(R"({"torch_dtype": "bfloat16"})", "{}", nothing), "dtype bfloat16");
  expect_holds(said(R"({"eos_token_id": 3})", R"({"eos_token_id": [4, 5]})", nothing),
               "generation_config.json with 4, 5");
  expect_holds(said(R"({"eos_token_id": 128000})", R"({"eos_token_id": [2, 999]})", nothing),
               "generation_config.json: eos_token_id 999 is beyond the 500 tokens of the model");
  expect_holds(said("{}", "{}",
                    [](const std::string& folder) { spill(folder + "/model.safetensors.index.json", "{}"); }),
               "both exist");
}

}  // namespace
}  // namespace octet::runtime::model_folder_test
