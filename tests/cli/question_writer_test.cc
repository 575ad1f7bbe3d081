// How `trainer generate` formats questions: with templates of the table, a folder's own Jinja template, or as
// plain text.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "../src/answers/question_writer.h"
#include "cli/generate_task.h"
#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::test::question_writer_test {
namespace {

namespace fs = std::filesystem;

/// Formats a system message, and thoughts unless they are disabled, unlike any row of the table.
const std::string kOwn =
    "{%- for m in messages -%}[{{ m.role }}] {{ m.content }}\n{% endfor -%}"
    "{%- if add_generation_prompt -%}[assistant] "
    "{%- if enable_thinking is defined and not enable_thinking -%}<quick>{%- endif -%}{%- endif -%}";

class WritesQuestions : public testing::Test {
 protected:
  WritesQuestions() : folder_("question_writer"), model_(folder_ / "model") {
    fs::copy(Task::get().model(), model_);
    own_template("");
  }
  /// Sets the folder's template; "" removes it.
  void own_template(const std::string& source) const {
    fs::remove(model_ + "/chat_template.jinja");
    Json config = parse_json(slurp(model_ + "/tokenizer_config.json"), "config");
    config.erase("chat_template");
    spill(model_ + "/tokenizer_config.json", config.dump());
    if (!source.empty()) spill(model_ + "/chat_template.jinja", source);
  }
  answers::QuestionWriter writer(answers::GenerateOptions o = {}) const {
    o.model = model_;
    return {o, answers::find_model(o)};
  }
  static std::string asked(const answers::QuestionWriter& writer, const std::string& system = "") {
    return writer.tokenizer().decode(writer.prompt(answers::ask("sort pear fig", system)));
  }
  static void expect_refused(const std::function<void()>& act, const std::string& what,
                             const std::string& found = "") {
    try {
      act();
      ADD_FAILURE() << "nothing was refused: " << what;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_NE(e.problem().what.find(what), std::string::npos) << e.what();
      EXPECT_NE(e.problem().found.find(found), std::string::npos) << e.what();
    }
  }
  TemporaryFolder folder_;
  std::string model_;
};

TEST_F(WritesQuestions, InTheFoldersOwnWordsWhereNoTemplateOfTheTableHasThem) {
  own_template(kOwn);
  const answers::QuestionWriter plain = writer();
  EXPECT_TRUE(plain.chats());
  EXPECT_EQ(asked(plain), "[user] sort pear fig\n[assistant]");
  EXPECT_EQ(asked(plain, "be quick"), "[system] be quick\n[user] sort pear fig\n[assistant]");
  EXPECT_NE(plain.told().find("the model's own, in Jinja"), std::string::npos);
  EXPECT_EQ(asked(writer({.default_system = "slowly"})),
            "[system] slowly\n[user] sort pear fig\n[assistant]");
  EXPECT_EQ(asked(writer({.system = "now", .default_system = "slowly"})),
            "[system] now\n[user] sort pear fig\n[assistant]");
  EXPECT_EQ(asked(writer({.default_system = "slowly"}), "be quick"),
            "[system] be quick\n[user] sort pear fig\n[assistant]");
  EXPECT_EQ(asked(writer({.enable_thinking = "true"})), "[user] sort pear fig\n[assistant]");
  for (const char* none : {"false", "null"})
    EXPECT_EQ(asked(writer({.enable_thinking = none})), "[user] sort pear fig\n[assistant]<quick>");
  // A whole conversation, for its score.
  answers::Question scored = answers::ask("sort pear fig", "");
  scored.answer = "fig pear";
  EXPECT_EQ(plain.tokenizer().decode(plain.whole(scored)), "[user] sort pear fig\n[assistant] fig pear\n");
  EXPECT_NE(plain.recipe(), writer({.default_system = "slowly"}).recipe());
  EXPECT_NE(plain.recipe(), writer({.enable_thinking = "false"}).recipe());
  // A named template takes precedence.
  EXPECT_EQ(asked(writer({.template_name = "chatml"})),
            "<|im_start|>user\nsort pear fig<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(WritesQuestions, ToolsCallsAndTheirAnswersReachTheFoldersOwnTemplate) {
  own_template(
      "{%- for t in tools or [] -%}<{{ t.function.name }}>{%- endfor -%}"
      "{%- for m in messages -%}[{{ m.role }}]{{ m.content }}"
      "{%- for c in m.tool_calls or [] -%}({{ c.function.name }}:{{ c.function.arguments.x }}){%- endfor -%}"
      "{%- endfor -%}");
  answers::Question question = answers::ask("six", "");
  question.turns.push_back({"function", R"({"name": "double", "arguments": {"x": 6}})"});
  question.turns.push_back({"observation", "12"});
  question.tools = R"([{"type": "function", "function": {"name": "double"}}])";
  const answers::QuestionWriter writes = writer();
  EXPECT_EQ(writes.tokenizer().decode(writes.prompt(question)),
            "<double>[user]six[assistant](double:6)[tool]12");
  question.turns[1].content = "double 6";
  EXPECT_THROW(writes.prompt(question), Error);
}

TEST_F(WritesQuestions, AsTextWithoutATemplateAndNeverWhereOneCannotBeRendered) {
  const answers::QuestionWriter text = writer();
  EXPECT_FALSE(text.chats());
  EXPECT_EQ(text.prompt(answers::ask("sort pear fig", "")),
            text.tokenizer().encode("sort pear fig", {.add_special = true}).ids);
  expect_refused([&] { writer({.system = "quick"}); }, "--system needs a chat template");
  expect_refused([&] { writer({.default_system = "quick"}); }, "--default-system needs a chat template");
  expect_refused([&] { writer({.enable_thinking = "true"}); }, "--enable-thinking needs a chat template");
  for (const std::string broken : {"{{ broken", "{{ raise_exception('no') }}"}) {
    own_template(broken);
    const answers::QuestionWriter writes = writer();
    expect_refused([&] { asked(writes); }, "conversations need a chat template", "cannot be rendered");
    answers::Question question = answers::ask("sort", "");
    question.answer = "fig";
    expect_refused([&] { writes.whole(question); }, "conversations need a chat template",
                   "cannot be rendered");
    // Texts and ids need no template.
    question.plain = true;
    EXPECT_FALSE(writes.whole(question).empty());
    question.prompt_ids = {5, 6};
    EXPECT_EQ(writes.prompt(question), question.prompt_ids);
  }
  fs::remove(model_ + "/tokenizer.json");
  const answers::QuestionWriter none = writer();
  EXPECT_FALSE(none.has_tokenizer());
  expect_refused([&] { (void)asked(none); }, "text needs a tokenizer");
  expect_refused([&] { writer({.enable_thinking = "true"}); }, "--enable-thinking needs a tokenizer");
}

// The settings mean the same as in training: with enable_thinking true, the model writes the thoughts.
TEST_F(WritesQuestions, WithThoughtsAndSystemMessagesAsInTraining) {
  const std::string begin = "<|im_start|>user\nsort pear fig<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(asked(writer({.template_name = "qwen3"})), begin);
  EXPECT_EQ(asked(writer({.template_name = "qwen3", .enable_thinking = "true"})), begin);
  for (const char* none : {"false", "null"}) {
    EXPECT_EQ(asked(writer({.template_name = "qwen3", .enable_thinking = none})),
              begin + "<think>\n\n</think>\n\n");
  }
  EXPECT_EQ(writer({.template_name = "qwen3", .enable_thinking = "false"}).doubt(), "");
  EXPECT_NE(writer({.template_name = "chatml", .enable_thinking = "false"}).doubt(), "");
  EXPECT_EQ(writer({.template_name = "chatml"}).doubt(), "");
  EXPECT_EQ(asked(writer({.template_name = "chatml", .default_system = "slowly"})),
            "<|im_start|>system\nslowly<|im_end|>\n" + begin);
  EXPECT_EQ(asked(writer({.template_name = "chatml", .default_system = "slowly"}), "now"),
            "<|im_start|>system\nnow<|im_end|>\n" + begin);
}

// The program reports the template once.
TEST_F(WritesQuestions, AndTellsHow) {
  fs::remove_all(model_);
  fs::copy(trained_model(), model_, fs::copy_options::recursive);
  const auto asks = [&](const std::string& more, int np = 0) {
    return trainer("generate " + model_ + " --device cpu --max-new 4 " + more + " Sort", np);
  };
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  own_template("");
  const Outcome text = asks("Take");
  EXPECT_EQ(text.code, 0) << text.both();
  EXPECT_EQ(count(text.err, "questions are continued as plain text"), 1) << text.err;
  EXPECT_EQ(count(asks("--template chatml").err, "continued as plain text"), 0);
  own_template(kOwn);
  const Outcome own = asks("--enable-thinking false", 2);
  EXPECT_EQ(own.code, 0) << own.both();
  EXPECT_EQ(count(own.err, "template: the model's own, in Jinja"), 1) << own.err;
  EXPECT_EQ(count(own.err, "has no effect"), 0) << own.err;
  EXPECT_EQ(count(asks("--template chatml --enable-thinking false").err, "has no effect"), 1);
  own_template("{{ broken");
  const Outcome broken = asks("", 2);
  EXPECT_EQ(broken.code, 64) << broken.both();
  EXPECT_EQ(errors_in(broken), 1) << broken.both();
  EXPECT_EQ(count(broken.err, "name the template that the model was made for with --template"), 1);
}

}  // namespace
}  // namespace octet::test::question_writer_test
