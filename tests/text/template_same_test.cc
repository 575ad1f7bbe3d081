// A model's own chat template is kept only if it writes everything like the row.
#include <gtest/gtest.h>

#include "folder.h"
#include "golden.h"
#include "octet/base/json.h"
#include "octet/text/jinja.h"
#include "octet/text/template_jinja.h"
#include "octet/text/template_match.h"

namespace octet::text::template_same_test {
namespace {

class Rows : public testing::TestWithParam<std::string> {};

/// A row's template and a tokenizer prepared for it.
struct Prepared {
  explicit Prepared(const std::string& name) : chat(ChatTemplate::find(name)) {
    const std::string golden = golden_path("templates/" + name);
    const Json about = read_json(golden + "/template.json");
    tokenizer = Tokenizer::from_folder(golden + "/" + about["tokenizer"].get<std::string>());
    chat.prepare(tokenizer);
  }
  bool same(const std::string& jinja, const TemplateOptions& options = {}) const {
    const TestFolder folder;
    folder.write("chat_template.jinja", jinja);
    return folder_writes_as(folder.path(), chat, options, tokenizer);
  }
  std::string jinja(const TemplateOptions& options = {}) const { return jinja_of(chat, options, &tokenizer); }
  ChatTemplate chat;
  Tokenizer tokenizer = Tokenizer::from_folder(golden_path("tokenizers/gpt2"));
};

/// Returns `text` with its only occurrence of `part` replaced.
std::string changed(std::string text, const std::string& part, const std::string& by) {
  const std::size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  if (at != std::string::npos) text.replace(at, part.size(), by);
  return text;
}

TEST_P(Rows, WhatIsWrittenForARowWritesTheSame) {
  const Prepared row(GetParam());
  EXPECT_TRUE(row.same(row.jinja()));
  EXPECT_TRUE(row.same(row.jinja() + "{# laid out otherwise #}"));
}

/// The row refuses tools, so nothing about tools changes its text.
bool refuses_tools(const std::string& name) {
  return name == "gemma4";
}

// Tests each option of a run that changes the text.
TEST_P(Rows, OfARunWithOtherOptionsItDoesNot) {
  if (refuses_tools(GetParam())) GTEST_SKIP() << "no tools";
  const Prepared row(GetParam());
  TemplateOptions told;
  told.default_system = "Xyzzy";
  EXPECT_FALSE(row.same(row.jinja(), told));
  EXPECT_TRUE(row.same(row.jinja(told), told));
  TemplateOptions form;
  form.tool_format = row.chat.name().starts_with("llama") ? "qwen" : "llama3";
  EXPECT_FALSE(row.same(row.jinja(), form));
  EXPECT_TRUE(row.same(row.jinja(form), form));
  TemplateOptions quiet;
  quiet.enable_thinking = false;
  EXPECT_EQ(row.same(row.jinja(), quiet), !row.chat.thinks());
  EXPECT_TRUE(row.same(row.jinja(quiet), quiet));
  TemplateOptions all;
  all.preserve_thinking = true;
  EXPECT_EQ(row.same(row.jinja(), all), !row.chat.thinks());
  EXPECT_TRUE(row.same(row.jinja(all), all));
}

// Tools, calls, answers of tools, a system message, the question of a second turn: a template that omits or
// refuses one of them differs.
TEST_P(Rows, WhatIsLeftOutOrRefusedIsADifference) {
  if (refuses_tools(GetParam())) GTEST_SKIP() << "no tools";
  const Prepared row(GetParam());
  const std::string all = row.jinja();
  const std::string first = "{%- set ns = ";
  for (const auto& [part, by] : std::vector<std::pair<std::string, std::string>>{
           {"if tools -", "if false -"},
           {"if message['tool_calls'] -", "if false -"},
           {"message['role'] == 'tool' -", "message['role'] == 'nobody' -"},
           {"for message in turns -", "for message in turns[:2] -"},
           {first, "{%- if tools -%}{{ raise_exception('no tools') }}{%- endif -%}" + first},
           {first,
            "{%- if messages[0]['role'] == 'system' -%}{{ raise_exception('x') }}{%- endif -%}" + first},
           {first, "{%- if messages | length > 1 -%}{{ raise_exception('x') }}{%- endif -%}" + first}}) {
    EXPECT_FALSE(row.same(changed(all, part, by))) << part << " -> " << by;
  }
  EXPECT_FALSE(row.same("{{ broken"));
  EXPECT_FALSE(row.same("{{ raise_exception('never') }}"));
}

// Tools in the forms of servers: without parameters, without a description, with a list as type.
TEST_P(Rows, EveryToolIsWritten) {
  if (refuses_tools(GetParam())) GTEST_SKIP() << "no tools";
  const Prepared row(GetParam());
  for (const char* format : {"default", "llama3", "mistral", "qwen"}) {
    TemplateOptions options;
    options.tool_format = format;
    const Json either = {{"type", {"string", "null"}}};
    const Json variables{
        {"messages", {{{"role", "user"}, {"content", "What time is it?"}}}},
        {"tools",
         {{{"type", "function"}, {"function", {{"name", "now"}}}},
          {{"name", "bare"}, {"description", "Without a wrapper"}, {"parameters", nullptr}},
          {{"type", "function"}, {"function", {{"name", "none"}, {"parameters", {{"type", "object"}}}}}},
          {{"type", "function"},
           {"function", {{"name", "zone"}, {"parameters", {{"properties", {{"city", either}}}}}}}}}},
        {"add_generation_prompt", true}};
    const std::string text = JinjaTemplate(row.jinja(options)).render(variables);
    for (const char* name : {"now", "bare", "none", "zone", "city"}) {
      EXPECT_NE(text.find(name), std::string::npos) << format << "\n" << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TemplateSame, Rows, testing::ValuesIn(ChatTemplate::names()),
                         [](const auto& row) { return row.param; });

// Many templates write plain conversations equally.
TEST(TemplateSame, ASmallChatmlWithoutToolsIsNotKept) {
  const Prepared chatml("chatml"), qwen3("qwen3_nothink");
  const std::string small =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_FALSE(chatml.same(small));
  EXPECT_FALSE(qwen3.same(small));
  // A handwritten template with tools.
  EXPECT_TRUE(qwen3.same(
      "{% if tools %}{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{{ "
      "messages[0].content "
      "}}{% endif %}{{ '\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user "
      "query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}"
      "{% for t in tools %}{{ '\\n' ~ t | tojson }}{% endfor %}{{ '\\n</tools>\\n\\nFor each function call, "
      "return a json object with function name and arguments within <tool_call></tool_call> XML "
      "tags:\\n<tool_call>\\n{\"name\": <function-name>, \"arguments\": "
      "<args-json-object>}\\n</tool_call><|im_end|>\\n' }}"
      "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' ~ messages[0].content ~ "
      "'<|im_end|>\\n' }}{% endif %}"
      "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>user\\n' ~ m.content ~ "
      "'<|im_end|>\\n' "
      "}}{% elif m.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' ~ m.content ~ "
      "'\\n</tool_response><|im_end|>\\n' }}{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' ~ "
      "m.content }}{% for c in m.tool_calls or [] %}{{ '\\n' if not loop.first }}{{ "
      "'<tool_call>\\n{\"name\": "
      "\"' ~ c.function.name ~ '\", \"arguments\": ' ~ c.function.arguments | tojson ~ '}\\n</tool_call>' }}"
      "{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"));
}

TEST(TemplateSame, ThoughtsThatStayOrAreMissingAreADifference) {
  const Prepared row("qwen3");
  const std::string all = row.jinja();
  EXPECT_FALSE(row.same(jinja_of(ChatTemplate::find("qwen3_nothink"))));
  for (const auto& [part, by] : std::vector<std::pair<std::string, std::string>>{
           {"thinking == false or not (loop.last or preserved)", "thinking == false"},
           {"if add_generation_prompt and not thinking", "if false"},
           {"if add_generation_prompt and not thinking", "if add_generation_prompt"},
           {"if loop.last and '<think>' not in content", "if false and '<think>' not in content"}}) {
    EXPECT_FALSE(row.same(changed(all, part, by))) << part << " -> " << by;
  }
}

/// Expects equal ids of a conversation in training and of the text of the Jinja template.
void expect_the_same_ids(const std::string& name, const std::string& tokenizer_name,
                         const TemplateOptions& options) {
  SCOPED_TRACE(name + " over " + tokenizer_name);
  const ChatTemplate chat = ChatTemplate::find(name);
  Tokenizer tokenizer = Tokenizer::from_folder(golden_path("tokenizers/" + tokenizer_name));
  chat.prepare(tokenizer);
  Conversation conversation;
  conversation.system = "Be brief.";
  conversation.messages = {
      {"user", "What is it?"},  {"assistant", "A cat."},
      {"user", "  Which one?"}, {"assistant", ""},
      {"user", "Look"},         {"function", R"({"name": "look", "arguments": {"at": "it"}})"},
      {"observation", "grey"},  {"assistant", "The grey one."}};
  const Json call{{"name", "look"}, {"arguments", {{"at", "it"}}}};
  const Json messages = Json::array({{{"role", "system"}, {"content", "Be brief."}},
                                     {{"role", "user"}, {"content", "What is it?"}},
                                     {{"role", "assistant"}, {"content", "A cat."}},
                                     {{"role", "user"}, {"content", "  Which one?"}},
                                     {{"role", "assistant"}, {"content", ""}},
                                     {{"role", "user"}, {"content", "Look"}},
                                     {{"role", "assistant"}, {"tool_calls", {{{"function", call}}}}},
                                     {{"role", "tool"}, {"content", "grey"}},
                                     {{"role", "assistant"}, {"content", "The grey one."}}});
  const Json variables{
      {"messages", messages}, {"bos_token", tokenizer.bos_token()}, {"eos_token", tokenizer.eos_token()}};
  const std::string text = JinjaTemplate(jinja_of(chat, options, &tokenizer)).render(variables);
  const Example example = chat.encode_example(tokenizer, conversation, options);
  ASSERT_EQ(example.outcome, Example::Outcome::kept) << example.reason;
  const auto ids = tokenizer.encode(text).ids;
  EXPECT_EQ(tokenizer.decode(ids), tokenizer.decode(example.input_ids)) << text;
  // Words of the other small vocabularies cross the boundaries between parts.
  if (tokenizer_name == "gpt2_prefix" || name == "llama2") {
    EXPECT_EQ(ids, example.input_ids) << text;
  }
}

// Three kinds of tokenizers. The first adds a blank before every text, the second before every text that does
// not begin with one. The third is like the second, but adds none after a special token.
TEST(TemplateSame, BlanksOfTheTokenizerStandBetweenParts) {
  TemplateOptions format;
  format.tool_format = "qwen";
  for (const TemplateOptions& options : {TemplateOptions{}, format}) {
    for (const char* name : {"llama2", "mistral", "default", "deepseek3", "chatml", "vicuna", "alpaca"}) {
      for (const char* tokenizer : {"llama2", "mistral", "gpt2_prefix"}) {
        expect_the_same_ids(name, tokenizer, options);
      }
    }
  }
  const Prepared llama2("llama2"), qwen("qwen");
  EXPECT_NE(llama2.jinja(), jinja_of(llama2.chat));
  EXPECT_FALSE(llama2.same(jinja_of(llama2.chat)));
  EXPECT_EQ(qwen.jinja(), jinja_of(qwen.chat)) << "it puts none";
}

// transformers uses the template named tool_use if there are tools.
TEST(TemplateSame, OfSeveralTemplatesTheOneForToolsWritesTools) {
  const Prepared row("chatml");
  const std::string plain = row.jinja();
  const auto same = [&](const std::string& usual, const std::string& with_tools) {
    const TestFolder folder;
    Json list = Json::array({{{"name", "default"}, {"template", usual}}});
    if (!with_tools.empty()) list.push_back({{"name", "tool_use"}, {"template", with_tools}});
    folder.write("tokenizer_config.json", Json{{"chat_template", list}}.dump());
    return folder_writes_as(folder.path(), row.chat, {}, row.tokenizer);
  };
  EXPECT_TRUE(same(plain, ""));
  EXPECT_TRUE(same(plain, plain));
  const std::string other = changed(plain, "if tools -", "if false -");
  EXPECT_FALSE(same(plain, other));
  EXPECT_TRUE(same(other, plain)) << "it is never asked with tools";
  EXPECT_FALSE(same(other, ""));
  const TestFolder none;
  EXPECT_FALSE(folder_writes_as(none.path(), row.chat, {}, row.tokenizer));
}

}  // namespace
}  // namespace octet::text::template_same_test
