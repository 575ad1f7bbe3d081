// What stands beside the weights of a final model, so that it stops where it was trained to.
#include "octet/train/final_model.h"

#include <gtest/gtest.h>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "support/program.h"

namespace octet::train {
namespace {

constexpr const char* kTokenizers = OCTET_SOURCE_DIR "/tests/golden/tokenizers/";

/// The generation_config.json of a final model whose base has `own`; "": none.
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
  EXPECT_EQ(settings("qwen2", "qwen", R"({"eos_token_id":[7,3596,"x",8],"pad_token_id":5})"),
            R"({"eos_token_id":[3596,7,8],"pad_token_id":3594})");
  EXPECT_EQ(settings("llama3", "llama3", R"({"bos_token_id":9})").find("\"bos_token_id\":9"), 1u)
      << "the base's own";
  EXPECT_NE(settings("llama3", "llama3", "").find("\"bos_token_id\":"), std::string::npos)
      << "else the tokenizer's";
}

}  // namespace
}  // namespace octet::train
