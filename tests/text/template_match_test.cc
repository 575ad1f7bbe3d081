// A model's own Jinja chat template is recognised by its output.
#include <gtest/gtest.h>

#include "folder.h"
#include "golden.h"
#include "octet/base/json.h"
#include "octet/text/jinja.h"
#include "octet/text/template_jinja.h"
#include "octet/text/template_match.h"
#include "templates/template_row.h"

namespace octet::text::template_match_test {
namespace {

const std::string kChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const std::string kLlama3 =
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' ~ m['role'] ~ '<|end_header_id|>\\n\\n' ~ m['content'] | trim ~ '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{% endif %}";
// Refuses system messages, like Gemma's template.
const std::string kGemma =
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + "
    "m.content + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";
// Writes an empty thought in the last answer only.
const std::string kQwen3 =
    "{% for m in messages %}{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% if m.role == 'tool' %}{{ '<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const std::string kQwen3NoThink =
    "{% for m in messages %}{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}"
    "{% if m.role == 'tool' %}{{ '<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const std::string kQwen =
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. "
    "You are a helpful assistant.<|im_end|>\\n' }}{% endif %}" +
    kQwen3NoThink;
const std::string kDeepseek3 =
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% else %}"
    "{{ '<｜Assistant｜>' + m.content + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}";

struct Known {
  std::string name, folder, jinja;
};

class Match : public testing::TestWithParam<Known> {};

TEST_P(Match, TheRowThatWritesTheSameIsTaken) {
  const std::string golden = golden_path("templates/" + GetParam().folder);
  const std::string tokenizer =
      golden + "/" + read_json(golden + "/template.json")["tokenizer"].get<std::string>();
  const TestFolder folder;
  folder.write("chat_template.jinja", GetParam().jinja);
  const TemplateMatch match = match_template(folder.path(), Tokenizer::from_folder(tokenizer));
  ASSERT_TRUE(match.found) << match.reason;
  EXPECT_EQ(match.found->name(), GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(Rows, Match,
                         testing::Values(Known{"chatml", "chatml", kChatml},
                                         Known{"llama3", "llama3", kLlama3}, Known{"gemma", "gemma", kGemma},
                                         Known{"qwen3", "qwen3", kQwen3},
                                         Known{"qwen3_nothink", "qwen3_nothink", kQwen3NoThink},
                                         Known{"qwen", "qwen", kQwen},
                                         Known{"deepseek3", "deepseek3", kDeepseek3}),
                         [](const auto& param) { return param.param.name; });

// A model that was trained with a template is later recognised by its own file: with the text of tools, calls
// and thoughts that training wrote. Rows with the same plain text differ in them.
TEST(MatchSaved, TheTemplateOfEachRowIsRecognisedWithItsToolsAndThoughts) {
  const Tokenizer tokenizer = Tokenizer::from_folder(golden_path("tokenizers/llama3"));
  const TestFolder folder;
  for (const std::string& name : row_names_in_order()) {
    SCOPED_TRACE(name);
    folder.write("chat_template.jinja", jinja_of(ChatTemplate::find(name), {}, &tokenizer));
    const TemplateMatch match = match_template(folder.path(), tokenizer);
    ASSERT_TRUE(match.found) << match.reason;
    EXPECT_TRUE(folder_writes_as(folder.path(), *match.found, {}, tokenizer)) << match.found->name();
  }
}

// Most published templates trim contents, so training trims them as well.
TEST(MatchBlanks, ContentsAreTrimmedWhereTheTemplateTrimsThem) {
  const std::string golden = golden_path("templates/chatml");
  Tokenizer tokenizer = Tokenizer::from_folder(
      golden + "/" + read_json(golden + "/template.json")["tokenizer"].get<std::string>());
  const auto chatml = [](const std::string& content) {
    return "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ " + content +
           " }}<|im_end|>\n{% endfor %}"
           "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  };
  const TemplateMatch trims = match_jinja(chatml("m.content | trim"), "it", tokenizer);
  const TemplateMatch plain = match_jinja(chatml("m.content"), "it", tokenizer);
  const TemplateMatch users =
      match_jinja(chatml("m.content.strip() if m.role == 'user' else m.content"), "it", tokenizer);
  const TemplateMatch left = match_jinja(chatml("m.content.lstrip()"), "it", tokenizer);
  ASSERT_TRUE(trims.found && plain.found && users.found && left.found);
  EXPECT_EQ(trims.other_blanks + plain.other_blanks + users.other_blanks, "");
  EXPECT_EQ(left.other_blanks, "system");
  EXPECT_NE(told_of_trims(*trims.found).find("user"), std::string::npos);
  EXPECT_EQ(told_of_trims(*plain.found), "");
  EXPECT_NE(trims.found->words_hash(), plain.found->words_hash());
  plain.found->prepare(tokenizer);
  const auto ids = [&](const TemplateMatch& match, const std::string& system, const std::string& user,
                       const std::string& answer) {
    return match.found
        ->encode_example(tokenizer, {.messages = {{"user", user}, {"assistant", answer}}, .system = system})
        .input_ids;
  };
  const std::string blank = "\xE3\x80\x80";
  const auto bare = ids(plain, "s", "u", "a");
  EXPECT_EQ(ids(trims, blank + "s\n", " u" + blank, "\ta\n"), bare);
  EXPECT_NE(ids(plain, "s", "u\n", "a"), bare);
  EXPECT_EQ(ids(users, "s", "u\n", "a"), bare);
  EXPECT_NE(ids(users, "s", "u", "a\n"), bare);
  // The exported template writes the trained text. The model's own template is kept if it does, too.
  const JinjaTemplate exported(jinja_of(*trims.found, {}, &tokenizer));
  const Json messages{{{"role", "system"}, {"content", " s "}},
                      {{"role", "user"}, {"content", "\nu"}},
                      {{"role", "assistant"}, {"content", "a" + blank}}};
  EXPECT_EQ(tokenizer.encode(exported.render({{"messages", messages}})).ids, bare);
  const TestFolder folder;
  folder.write("chat_template.jinja", jinja_of(*trims.found, {}, &tokenizer));
  EXPECT_TRUE(folder_writes_as(folder.path(), *trims.found, {}, tokenizer));
  EXPECT_FALSE(folder_writes_as(folder.path(), *plain.found, {}, tokenizer));
  // A file that changes blanks in its own way renders conversations itself.
  folder.write("left.jinja", chatml("m.content.lstrip()"));
  EXPECT_EQ(template_named(folder / "left.jinja", tokenizer).name(), folder / "left.jinja");
  folder.write("trims.jinja", chatml("m.content | trim"));
  EXPECT_EQ(template_named(folder / "trims.jinja", tokenizer).name(), trims.found->name());
}

class MatchNone : public testing::Test {
 protected:
  std::string reason(const std::string& file, const std::string& text) {
    folder_.write(file, text);
    const TemplateMatch match = match_template(folder_.path(), tokenizer_);
    EXPECT_FALSE(match.found);
    return match.reason;
  }
  TestFolder folder_;
  Tokenizer tokenizer_ = Tokenizer::from_folder(golden_path("tokenizers/llama3"));
};

TEST_F(MatchNone, ATextThatNoRowWritesNamesTheNearest) {
  const std::string other =
      reason("chat_template.jinja",
             "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' ~ m.role ~ "
             "'<|end_header_id|>\\n\\n' }}{% if m.role == 'system' %}Today is Monday. "
             "{% endif %}{{ m.content ~ '<|eot_id|>' }}{% endfor %}");
  EXPECT_NE(other.find("every built-in template"), std::string::npos) << other;
  EXPECT_NE(other.find("'llama3' is the nearest"), std::string::npos) << other;
  EXPECT_NE(other.find("Today is Monday"), std::string::npos) << other;
}

TEST_F(MatchNone, WhatCannotBeRenderedIsSaidWithItsLine) {
  const std::string broken = reason("chat_template.jinja", "\n{% for m in messages %}");
  EXPECT_NE(broken.find("cannot be rendered"), std::string::npos) << broken;
  EXPECT_NE(broken.find("line 2"), std::string::npos) << broken;
  const std::string refuses = reason("chat_template.jinja", "{{ raise_exception('not today') }}");
  EXPECT_NE(refuses.find("not today"), std::string::npos) << refuses;
}

TEST_F(MatchNone, AFolderWithoutATemplateHasNothingToSay) {
  EXPECT_EQ(match_template(folder_.path(), tokenizer_).reason, "");
  EXPECT_FALSE(match_template(folder_.path(), tokenizer_).found);
}

TEST_F(MatchNone, TheTemplateStandsInOneOfThreePlaces) {
  EXPECT_FALSE(folder_template(folder_.path()));
  folder_.write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(folder_template(folder_.path()), "one");
  folder_.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "two"}]})");
  EXPECT_EQ(folder_template(folder_.path()), "two");
  folder_.write("tokenizer_config.json", R"({"chat_template": {"tool_use": "y", "default": "by name"}})");
  EXPECT_EQ(folder_template(folder_.path()), "by name");
  EXPECT_EQ(folder_template(folder_.path(), true), "y");
  folder_.write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_FALSE(folder_template(folder_.path()));
  folder_.write("chat_template.jinja", "three");
  EXPECT_EQ(folder_template(folder_.path()), "three");
}

}  // namespace
}  // namespace octet::text::template_match_test
