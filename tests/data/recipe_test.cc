// What tokens were made with: whatever changes them must change the recipe, or tokens of other settings are
// taken for the right ones (tokenized_path).
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "octet/data/template_encoder.h"

namespace octet::data {
namespace {

TemplateEncoderOptions conversations() {
  TemplateEncoderOptions options;
  options.folder = OCTET_SOURCE_DIR "/tests/golden/tokenizers/qwen2";
  options.template_name = "qwen3";
  return options;
}

std::string text_of(const Recipe& recipe) {
  std::string text;
  for (const auto& [name, value] : recipe) text += name + ": " + value + "\n";
  return text;
}

TEST(RecipeOfTokens, NamesEachSettingThatChangesThem) {
  struct Case {
    const char* name;
    std::function<void(TemplateEncoderOptions&)> change;
  };
  const std::vector<Case> cases = {
      {"template", [](auto& o) { o.template_name = "chatml"; }},
      {"mask_history", [](auto& o) { o.options.mask_history = true; }},
      {"train_on_prompt", [](auto& o) { o.options.train_on_prompt = true; }},
      {"enable_thinking", [](auto& o) { o.options.enable_thinking = false; }},
      {"no enable_thinking", [](auto& o) { o.options.enable_thinking = std::nullopt; }},
      {"preserve_thinking", [](auto& o) { o.options.preserve_thinking = true; }},
      {"default_system", [](auto& o) { o.options.default_system = "Be brief."; }},
      {"empty default_system", [](auto& o) { o.options.default_system = ""; }},
      {"tool_format", [](auto& o) { o.options.tool_format = "default"; }},
      {"cutoff_len", [](auto& o) { o.options.cutoff_len = 2047; }},
      {"split_special_tokens", [](auto& o) { o.options.split_special_tokens = true; }},
      {"texts cut off", [](auto& o) { o.text_cut = TextCut::truncate; }},
      {"texts left whole", [](auto& o) { o.text_cut = TextCut::whole; }},
      {"pieces of a text", [](auto& o) { o.most_pieces = 3; }},
      {"more pieces of a text", [](auto& o) { o.most_pieces = 4; }},
      {"bos",
       [](auto& o) { o.folder = OCTET_SOURCE_DIR "/tests/golden/tokenizers/llama3", o.add_bos = true; }},
      {"no bos",
       [](auto& o) { o.folder = OCTET_SOURCE_DIR "/tests/golden/tokenizers/llama3", o.add_bos = false; }},
      {"no template", [](auto& o) { o.template_name.reset(); }},
  };
  std::vector<std::string> recipes{text_of(TemplateEncoder(conversations()).recipe())};
  EXPECT_EQ(recipes.front(), text_of(TemplateEncoder(conversations()).recipe()));
  for (const Case& one : cases) {
    TemplateEncoderOptions options = conversations();
    one.change(options);
    const std::string recipe = text_of(TemplateEncoder(options).recipe());
    for (const std::string& other : recipes) EXPECT_NE(recipe, other) << one.name;
    recipes.push_back(recipe);
  }
}

// Tools of some formats stand behind the day's date.
TEST(RecipeOfTokens, NamesTheDateWhereTheTemplatePrintsIt) {
  TemplateEncoderOptions options = conversations();
  const auto on = [&](const char* tools, const char* date) {
    options.options.tool_format = tools;
    options.options.date = date;
    return text_of(TemplateEncoder(options).recipe());
  };
  EXPECT_NE(on("llama3", "2026-01-01"), on("llama3", "2026-01-02"));
  EXPECT_EQ(on("qwen", "2026-01-01"), on("qwen", "2026-01-02"));
}

}  // namespace
}  // namespace octet::data
