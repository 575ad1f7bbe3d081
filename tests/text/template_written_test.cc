// transformers' apply_chat_template on finished folders (tests/models/transformers_writes) gives the text of
// our renderer with equal templates, and the ids of training.
#include <gtest/gtest.h>

#include "../src/text/templates/template_row.h"
#include "golden.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/text/chat_template.h"
#include "octet/text/jinja.h"
#include "octet/text/template_jinja.h"

namespace octet::text::template_written_test {
namespace {

/// Returns the options of a case that change the text, with the date of the reference.
TemplateOptions options_of(const Json& c, bool thinks) {
  TemplateOptions out;
  out.date = "2026-03-09";
  // Otherwise training keeps the thoughts of earlier answers, which a server never shows to a model.
  out.mask_history = thinks;
  const Json given = c.value("options", Json::object());
  if (given.contains("default_system")) out.default_system = given["default_system"].get<std::string>();
  if (given.contains("tool_format")) out.tool_format = given["tool_format"].get<std::string>();
  if (given.contains("preserve_thinking")) out.preserve_thinking = given["preserve_thinking"].get<bool>();
  if (given.contains("enable_thinking")) {
    const Json& value = given["enable_thinking"];
    out.enable_thinking = value.is_null() ? std::nullopt : std::optional(value.get<bool>());
  }
  return out;
}

class Written : public testing::TestWithParam<std::string> {
 protected:
  Written() {
    template_.prepare(tokenizer_);
    each_case(folder_ + "/cases.jsonl", [&](const Json& c, const std::string&) { cases_.push_back(c); });
  }

  /// Returns the messages of a case in transformers' form.
  static Json messages_of(const Json& line, const Json& c) {
    if (line.contains("messages")) return line["messages"];
    Json out = Json::array();
    const std::string system = c.value("system", "");
    if (!system.empty()) out.push_back({{"role", "system"}, {"content", system}});
    const std::size_t all = c["messages"].size();
    const std::size_t count = line["whole"].get<bool>() ? all : all - 1 + all % 2;
    for (std::size_t i = 0; i < count; ++i) {
      Json message = c["messages"][i];
      if (message["role"] == "observation") message["role"] = "tool";
      out.push_back(message);
    }
    return out;
  }

  std::string rendered(const Json& line, const Json& c, TemplateOptions options) const {
    Json variables{{"messages", messages_of(line, c)},
                   {"add_generation_prompt", !line["whole"].get<bool>()},
                   {"tools", nullptr}};
    const std::string tools = c.value("tools", "");
    if (!tools.empty()) variables["tools"] = parse_json(tools, "tools");
    // Runs never pass null, but a caller may.
    const Json given = c.value("options", Json::object());
    if (given.contains("enable_thinking")) variables["enable_thinking"] = given["enable_thinking"];
    if (!options.enable_thinking) options.enable_thinking = true;
    if (tokenizer_.bos_id() >= 0) variables["bos_token"] = tokenizer_.bos_token();
    if (tokenizer_.eos_id() >= 0) variables["eos_token"] = tokenizer_.eos_token();
    std::string text = JinjaTemplate(jinja_of(template_, options, &tokenizer_)).render(variables);
    const std::string now = today({}), then = today(options);
    if (const std::size_t at = text.find(now); at != std::string::npos) text.replace(at, now.size(), then);
    return text;
  }

  std::vector<TokenId> trained(const Json& line, const Json& c, const TemplateOptions& options) const {
    Conversation conversation;
    for (const Json& m : c["messages"]) {
      conversation.messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>()});
    }
    conversation.system = c.value("system", "");
    conversation.tools = c.value("tools", "");
    if (!line["whole"].get<bool>()) {
      return template_.encode_prompt(tokenizer_, conversation, options).prompt_ids;
    }
    return template_.encode_example(tokenizer_, conversation, options).input_ids;
  }

  std::string folder_ = golden_path("templates/" + GetParam());
  Json about_ = read_json(folder_ + "/template.json");
  ChatTemplate template_ = ChatTemplate::find(about_["template"].get<std::string>());
  Tokenizer tokenizer_ = Tokenizer::from_folder(folder_ + "/" + about_["tokenizer"].get<std::string>());
  std::vector<Json> cases_;
};

TEST_P(Written, ByTransformersIsWhatTrainingSees) {
  int same = 0, tools = 0;
  const int lines = each_case(golden_path("written/" + GetParam() + ".jsonl"), [&](const Json& line,
                                                                                   const std::string& where) {
    if (line.contains("source")) {
      EXPECT_EQ(line["source"].get<std::string>(), jinja_of(template_, {}, &tokenizer_))
          << where << ": transformers read another template: run tests/models/transformers_writes";
      return;
    }
    const Json& c = cases_.at(line["case"].get<std::size_t>());
    TemplateOptions options = options_of(c, template_.thinks());
    options.cutoff_len = std::int64_t{1} << 20;
    const std::string about = where + " " + c["why"].get<std::string>();
    EXPECT_EQ(rendered(line, c, options), line["text"].get<std::string>()) << about;
    const bool equal = tokenizer_.encode(line["text"].get<std::string>()).ids == trained(line, c, options);
    EXPECT_EQ(equal, line["same"].get<bool>()) << about;
    same += equal ? 1 : 0;
    tools += equal && !c.value("tools", "").empty() ? 1 : 0;
  });
  // Words of these two small vocabularies cross the boundaries between questions and answers.
  const bool grows = GetParam() == "alpaca" || GetParam() == "vicuna";
  EXPECT_GE(lines, 60);
  EXPECT_GE(same, grows ? 5 : 50);
  EXPECT_GE(tools, grows ? 0 : 8);
}

// transformers wrote conversations with the rows for any family. TemplateGolden.InJinjaItWritesTheSame covers
// the other rows.
TEST(WrittenRows, AreThoseOfTheTable) {
  const std::string rows(general_rows().rows);
  for (const Json& row : parse_json(rows, "the rows")) {
    const auto name = row.at("name").get<std::string>();
    EXPECT_TRUE(path_exists(golden_path("written/" + name + ".jsonl")))
        << "tests/models/transformers_writes --write tests/golden/written makes it";
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, Written,
                         testing::Values("llama3", "qwen", "chatml", "chatml_new_tokens", "qwen3",
                                         "qwen3_nothink", "gemma", "gemma2", "gemma3", "mistral", "ministral",
                                         "llama2", "alpaca", "vicuna", "deepseek", "deepseek3", "deepseekr1",
                                         "default", "empty", "phi"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace octet::text::template_written_test
