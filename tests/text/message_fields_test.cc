// How a template writes a message's thought, the text before its calls, and an answer that is context only.
#include <gtest/gtest.h>

#include "folder.h"
#include "golden.h"
#include "octet/text/chat_template.h"

namespace octet::text::message_fields_test {
namespace {

const char* const kCalls = R"([{"name": "f", "arguments": {"x": 1}}])";

struct Model {
  explicit Model(const std::string& name, const std::string& tokenizer_name = "qwen2")
      : chat(ChatTemplate::find(name)),
        tokenizer(Tokenizer::from_folder(golden_path("tokenizers/" + tokenizer_name))) {
    chat.prepare(tokenizer);
  }
  Example encode(const Conversation& conversation, const TemplateOptions& options = {}) const {
    return chat.encode_example(tokenizer, conversation, options);
  }
  // Returns the text of the trained tokens.
  std::string trained(const Example& example) const {
    std::vector<TokenId> ids;
    for (const TokenId label : example.labels) {
      if (label >= 0) ids.push_back(label);
    }
    return tokenizer.decode(ids);
  }
  ChatTemplate chat;
  Tokenizer tokenizer;
};

TEST(MessageFields, AThoughtIsTrainedAsIfItStoodInTheText) {
  const Model qwen3("qwen3");
  const auto with = [](const std::string& thought, const std::string& content) {
    return Conversation{
        .messages = {{"user", "q"}, {.role = "assistant", .content = content, .thought = thought}}};
  };
  const Example inlined = qwen3.encode(with("", "<think>\nwhy\n</think>\n\na"));
  for (const auto& [thought, content] :
       {std::pair{"why", "a"}, std::pair{"\nwhy\n", "a"}, std::pair{"why", "\n\na"}}) {
    const Example read = qwen3.encode(with(thought, content));
    EXPECT_EQ(read.input_ids, inlined.input_ids);
    EXPECT_EQ(read.labels, inlined.labels);
  }
  EXPECT_NE(qwen3.encode(with("", "a")).labels, inlined.labels);
  const Prompt prompt = qwen3.chat.encode_prompt(qwen3.tokenizer, with("why", "a"));
  EXPECT_NE(qwen3.tokenizer.decode(prompt.response_ids).find("why"), std::string::npos);
}

TEST(MessageFields, AThoughtThatATemplateDoesNotWriteIsRefusedByName) {
  Conversation conversation{
      .messages = {{"user", "q"},
                   {.role = "assistant", .content = "a", .thought = "why", .thought_field = "reasoning"}}};
  const TestFolder folder;
  folder.write("own.jinja",
               "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
               "{% if add_generation_prompt %}<assistant>{% endif %}");
  for (const std::string& name : {std::string("chatml"), std::string("llama3"), folder / "own.jinja"}) {
    const Example example = Model(name).encode(conversation);
    EXPECT_EQ(example.outcome, Example::Outcome::refused) << name;
    EXPECT_NE(example.reason.find("'reasoning' holds thoughts"), std::string::npos) << example.reason;
  }
}

TEST(MessageFields, AFileInJinjaReadsTheThoughtUnderItsName) {
  const TestFolder folder;
  for (const std::string name : {"reasoning_content", "thinking"}) {
    folder.write("own.jinja", "{% for m in messages %}<{{ m.role }}>{% if m." + name + " %}({{ m." + name +
                                  " }}){% endif %}{{ m.content }}\n{% endfor %}"
                                  "{% if add_generation_prompt %}<assistant>{% endif %}");
    const Model own(folder / "own.jinja");
    const Example example = own.encode(
        {.messages = {{"user", "q"},
                      {.role = "assistant", .content = "a", .thought = "why", .thought_field = "thinking"}}});
    EXPECT_EQ(own.trained(example), "(why)a\n") << example.reason;
  }
}

TEST(MessageFields, AnAnswerThatIsNotTrainedHasNoLabels) {
  for (const char* name : {"chatml", "qwen3", "llama3", "alpaca", "empty"}) {
    const Model model(name);
    const auto encode = [&](bool first, bool last) {
      return model.encode({.messages = {{"user", "one"},
                                        {.role = "assistant", .content = "two", .trained = first},
                                        {"user", "three"},
                                        {.role = "assistant", .content = "four", .trained = last}}});
    };
    const Example both = encode(true, true), none = encode(false, false);
    EXPECT_EQ(encode(false, true).input_ids, both.input_ids) << name;
    EXPECT_EQ(none.input_ids, both.input_ids) << name;
    EXPECT_EQ(model.trained(none), "") << name;
    const std::string first = model.trained(encode(true, false)), last = model.trained(encode(false, true));
    EXPECT_EQ(first + last, model.trained(both)) << name;
    EXPECT_NE(first.find("two"), std::string::npos) << name;
    EXPECT_EQ(first.find("four"), std::string::npos) << name;
    EXPECT_NE(last.find("four"), std::string::npos) << name;
  }
}

TEST(MessageFields, TextBeforeCallsIsTrainedWithThem) {
  const auto with = [](const std::string& text) {
    return Conversation{.messages = {{"user", "q"}, {.role = "function", .content = kCalls, .text = text}}};
  };
  for (const char* name : {"qwen", "qwen3"}) {
    const Model model(name);
    const std::string bare = model.trained(model.encode(with("")));
    EXPECT_EQ(model.trained(model.encode(with("I look. "))),
              bare.substr(0, bare.find("<tool_call>")) + "I look. " + bare.substr(bare.find("<tool_call>")));
  }
  const Example refused = Model("mistral").encode(with("I look. "));
  EXPECT_EQ(refused.outcome, Example::Outcome::refused);
  EXPECT_NE(refused.reason.find("text before its calls"), std::string::npos) << refused.reason;
}

TEST(MessageFields, ARowDecidesWhetherItThinks) {
  const Model qwen3("qwen3");
  Conversation conversation{.messages = {{"user", "q"}, {"assistant", "a"}}};
  for (const bool thinks : {false, true}) {
    const Example configured = qwen3.encode(conversation, {.enable_thinking = thinks});
    Conversation own = conversation;
    own.enable_thinking = thinks;
    const Example row = qwen3.encode(own, {.enable_thinking = !thinks});
    EXPECT_EQ(row.input_ids, configured.input_ids);
    EXPECT_EQ(row.labels, configured.labels);
  }
  const TestFolder folder;
  folder.write("own.jinja",
               "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
               "{{ enable_thinking if enable_thinking is defined else 'unset' }}\n{% endfor %}"
               "{% if add_generation_prompt %}<assistant>{% endif %}");
  const Model own(folder / "own.jinja");
  EXPECT_EQ(own.trained(own.encode(conversation)), "aunset\n");
  conversation.enable_thinking = true;
  EXPECT_EQ(own.trained(own.encode(conversation)), "aTrue\n");
  conversation.enable_thinking = false;
  EXPECT_EQ(own.trained(own.encode(conversation)), "aFalse\n");
}

TEST(MessageFields, DigitsOfCallsAreKeptOrRefused) {
  const std::string number = "42012345678901234567890123";
  const Conversation conversation{
      .messages = {{"user", "q"}, {"function", R"([{"name": "f", "arguments": {"x": )" + number + "}}]"}}};
  const Model qwen("qwen");
  EXPECT_NE(qwen.trained(qwen.encode(conversation)).find(number), std::string::npos);
  const TestFolder folder;
  folder.write("own.jinja",
               "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | "
               "tojson }}{% endif %}\n"
               "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
  const Example example = Model(folder / "own.jinja").encode(conversation);
  EXPECT_EQ(example.outcome, Example::Outcome::refused);
  EXPECT_NE(example.reason.find(number), std::string::npos) << example.reason;
}

}  // namespace
}  // namespace octet::text::message_fields_test
