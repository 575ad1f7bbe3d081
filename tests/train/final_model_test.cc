// Files of a final model other than its weights: they make inference stop where training did.
#include "octet/train/run_exports.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "support/program.h"

namespace octet::train::final_model_test {
namespace {

constexpr const char* kTokenizers = OCTET_SOURCE_DIR "/tests/golden/tokenizers/";
constexpr const char* kModels = OCTET_SOURCE_DIR "/tests/golden/models/";

/// Returns the generation_config.json of a final model with base settings `own`; "": none.
std::string settings(const std::string& tokenizer, const std::string& chat, const std::string& own) {
  const test::TemporaryFolder folder("final_model");
  if (!own.empty()) test::spill(folder / "base/generation_config.json", own);
  std::filesystem::create_directories(folder / "final");
  data::TemplateEncoderOptions options{.folder = kTokenizers + tokenizer, .match_template = false};
  if (!chat.empty()) options.template_name = chat;
  write_tokenizer(folder / "final", folder / "base", data::TemplateEncoder(options));
  return read_json(folder / "final/generation_config.json").dump();
}

TEST(FinalModel, EndsAnswersAsItsTemplateDoesAndAsItsBaseDid) {
  EXPECT_EQ(settings("qwen2", "qwen", ""), R"({"eos_token_id":3596,"pad_token_id":3594})");
  EXPECT_EQ(settings("qwen2", "qwen", R"({"eos_token_id":3594,"temperature":0.7})"),
            R"({"eos_token_id":[3596,3594],"temperature":0.7,"pad_token_id":3594})");
  EXPECT_EQ(settings("qwen2", "qwen", R"({"eos_token_id":[7,3596,8],"pad_token_id":5})"),
            R"({"eos_token_id":[3596,7,8],"pad_token_id":3594})");
  EXPECT_THROW(settings("qwen2", "qwen", R"({"eos_token_id":[7,"x"]})"), Error) << "no id is left out";
  EXPECT_EQ(settings("llama3", "llama3", R"({"bos_token_id":9})").find("\"bos_token_id\":9"), 1u)
      << "the base's own";
  EXPECT_NE(settings("llama3", "llama3", "").find("\"bos_token_id\":"), std::string::npos)
      << "else the tokenizer's";
}

/// The text files of a final model over a base with the config.json of a golden model plus changes.
struct Finished {
  Json config, generation, tokenizer;

  Finished(const std::string& model, const Json& changes, const std::string& words, const std::string& chat,
           const std::function<void(const std::string&)>& prepare = {}) {
    const test::TemporaryFolder folder("final_model");
    Json base = read_json(kModels + model + "/config.json");
    if (!changes.is_null()) base.update(changes, true);
    test::spill(folder / "base/config.json", base.dump(2));
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      const std::string from = kTokenizers + words + "/" + name;
      test::spill(folder / ("base/" + std::string(name)), test::slurp(from));
    }
    if (prepare) prepare(folder / "base");
    // Like after an export of the weights.
    test::spill(folder / "final/config.json", base.dump(2));
    data::TemplateEncoderOptions options{.folder = folder / "base", .match_template = false};
    if (!chat.empty()) options.template_name = chat;
    write_tokenizer(folder / "final", folder / "base", data::TemplateEncoder(options));
    config = read_json(folder / "final/config.json");
    generation = read_json(folder / "final/generation_config.json");
    tokenizer = read_json(folder / "final/tokenizer_config.json");
    same_config = test::slurp(folder / "final/config.json") == base.dump(2);
  }
  bool same_config = false;  ///< byte for byte equal
};

// ChatML over a base with another end token. Readers use any of three files to find the end of an answer.
TEST(FinalModel, AllItsFilesEndAnswersWithTheSameTokens) {
  const auto ends = [](const Finished& f) {
    EXPECT_EQ(f.config["eos_token_id"], f.generation["eos_token_id"]);
    return f.config["eos_token_id"].dump() + " " + f.tokenizer["eos_token"].dump();
  };
  EXPECT_EQ(ends({"qwen2", {{"eos_token_id", 3594}}, "qwen2", "qwen"}), "[3596,3594] \"<|im_end|>\"");
  EXPECT_EQ(ends({"qwen2", {}, "qwen2", "qwen"}), "3596 \"<|im_end|>\"") << "the base names none";
  // Two tokens end an answer. The tokenizer's is first, for readers that use only one.
  EXPECT_EQ(ends({"llama3", {{"eos_token_id", {3995, 4003}}}, "llama3", "llama3"}),
            "[4003,4002,3995] \"<|eot_id|>\"");
  EXPECT_EQ(ends({"llama3", {{"eos_token_id", 3995}}, "llama3", ""}), "3995 \"<|end_of_text|>\"");
  // If the base has a generation_config.json, its entry counts, as in transformers.
  EXPECT_EQ(ends({"qwen2",
                  {{"eos_token_id", 9}},
                  "qwen2",
                  "qwen",
                  [](const std::string& base) {
                    test::spill(base + "/generation_config.json", R"({"eos_token_id": 7})");
                  }}),
            "[3596,7] \"<|im_end|>\"");
}

TEST(FinalModel, ItsConfigNamesThePadOfItsTokenizerUnlessThatEndsAnswers) {
  const auto pad = [](const std::string& model, const Json& named, const std::string& words,
                      const std::string& chat) {
    const Finished f(model, {{"pad_token_id", named}}, words, chat);
    return f.config.at("pad_token_id").dump() + " " + f.generation.at("pad_token_id").dump();
  };
  EXPECT_EQ(pad("gemma3", 5, "gemma", "gemma3"), "0 0");
  EXPECT_EQ(pad("gemma3", 0, "gemma", "gemma3"), "0 0");
  EXPECT_EQ(pad("qwen2", nullptr, "qwen2", "qwen"), "null 3594") << "what is not named contradicts nothing";
  EXPECT_EQ(pad("llama3", 9, "llama3", "llama3"), "null 4003") << "its row would learn nothing any more";
}

TEST(FinalModel, TheTextModelOfAMultimodalOneEndsAnswersAlike) {
  Json text = read_json(std::string(kModels) + "gemma3/config.json");
  text.erase("architectures");
  const test::TemporaryFolder folder("final_model");
  const Json config{{"architectures", {"Gemma3ForConditionalGeneration"}},
                    {"model_type", "gemma3"},
                    {"eos_token_id", 9},
                    {"pad_token_id", 8},
                    {"text_config", text}};
  test::spill(folder / "base/config.json", config.dump());
  test::spill(folder / "final/config.json", config.dump());
  const data::TemplateEncoder encoder(
      {.folder = std::string(kTokenizers) + "gemma", .template_name = "gemma3"});
  write_tokenizer(folder / "final", folder / "base", encoder);
  const Json now = read_json(folder / "final/config.json");
  const Json ends = Json::array({encoder.tokenizer().eos_id(), 9});
  EXPECT_EQ(now["eos_token_id"], ends);
  EXPECT_EQ(now["text_config"]["eos_token_id"], ends);
  EXPECT_EQ(now["pad_token_id"], encoder.tokenizer().pad_id());
  EXPECT_EQ(now["text_config"]["pad_token_id"], encoder.tokenizer().pad_id());
}

TEST(FinalModel, ItsConfigStaysByteForByteWhereItFits) {
  EXPECT_TRUE(Finished("gemma3", {{"eos_token_id", 1}}, "gemma", "").same_config);
  EXPECT_FALSE(Finished("gemma3", {{"eos_token_id", 1}}, "gemma", "gemma3").same_config);
}

TEST(FinalModel, ItsTokenizerAllowsNoLongerTextsThanTheModelHasPositions) {
  const auto length = [](const std::string& model, const Json& changes, const Json& said) {
    return Finished(model, changes, "qwen2", "qwen",
                    [&](const std::string& base) {
                      Json config = read_json(base + "/tokenizer_config.json");
                      config.erase("model_max_length");
                      if (!said.is_null()) config["model_max_length"] = said;
                      test::spill(base + "/tokenizer_config.json", config.dump());
                    })
        .tokenizer.at("model_max_length")
        .dump();
  };
  EXPECT_EQ(length("qwen2", {}, 8192), "256");
  EXPECT_EQ(length("qwen2", {}, 256), "256");
  EXPECT_EQ(length("qwen2", {}, 100), "100") << "it fits";
  EXPECT_EQ(length("qwen2", {{"max_position_embeddings", 16384}}, 8192), "8192");
  EXPECT_EQ(length("qwen2", {}, 1e30), "256") << "any length, as transformers writes it";
  EXPECT_EQ(length("qwen2", {}, nullptr), "256") << "nothing is any length, too";
  // YaRN extends the length of the original training.
  EXPECT_EQ(length("qwen3-yarn", {}, 8192), "256");
  EXPECT_EQ(length("qwen3-yarn", {{"rope_parameters", {{"factor", 16.0}}}}, 8192), "512");
}

// Roles need a file, even if the base has none.
TEST(FinalModel, ATokenizerWithoutAConfigGetsOne) {
  const test::TemporaryFolder folder("final_model");
  test::spill(folder / "base/tokenizer.json",
              test::slurp(kTokenizers + std::string("llama3/tokenizer.json")));
  std::filesystem::create_directories(folder / "final");
  write_tokenizer(folder / "final", folder / "base",
                  data::TemplateEncoder({.folder = folder / "base", .template_name = "llama3"}));
  const Json config = read_json(folder / "final/tokenizer_config.json");
  EXPECT_EQ(config["eos_token"], "<|eot_id|>");
  EXPECT_EQ(text::Tokenizer::from_folder(folder / "final").eos_token(), "<|eot_id|>");
}

}  // namespace
}  // namespace octet::train::final_model_test
