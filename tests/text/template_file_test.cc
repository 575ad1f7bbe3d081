// Templates in a user's file: their texts against built-in templates and against texts written by hand, their
// exports, and the errors of unusable files.
#include <gtest/gtest.h>

#include "folder.h"
#include "golden.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/text/chat_template.h"
#include "octet/text/jinja.h"
#include "octet/text/template_jinja.h"
#include "octet/text/template_match.h"

namespace octet::text::template_file_test {
namespace {

/// A file like SFT-Play's: the prompt of one question, after which the answer begins.
const std::string kQuestion =
    "{% if system %}\n<|system|>\n{{ system }}\n{% endif %}\n<|user|>\n{{ user | trim }}\n<|assistant|>\n\n";

Tokenizer tokenizer_of(const std::string& name) {
  return Tokenizer::from_folder(golden_path("tokenizers/" + name));
}

/// Writes a template file and returns its template. Prepares the tokenizer for it.
ChatTemplate file_of(const TestFolder& folder, const std::string& source, Tokenizer& tokenizer) {
  folder.write("own.jinja", source);
  const ChatTemplate chat = ChatTemplate::find(folder / "own.jinja");
  chat.prepare(tokenizer);
  return chat;
}

Conversation asked(const std::string& system, const std::vector<std::string>& turns) {
  Conversation out;
  for (const std::string& turn : turns)
    out.messages.push_back({out.messages.size() % 2 == 0 ? "user" : "assistant", turn});
  out.system = system;
  return out;
}

/// Returns an example from pieces of text, alternately untrained and trained, each tokenised separately.
Example by_hand(const Tokenizer& tokenizer, const std::vector<std::string>& pieces) {
  Example out;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto ids = tokenizer.encode(pieces[i]).ids;
    out.input_ids.insert(out.input_ids.end(), ids.begin(), ids.end());
    for (const TokenId id : ids) out.labels.push_back(i % 2 == 1 ? id : kIgnore);
  }
  return out;
}

void expect_same(const Example& got, const Example& want, const Tokenizer& tokenizer) {
  ASSERT_EQ(got.outcome, Example::Outcome::kept) << got.reason;
  EXPECT_EQ(got.input_ids, want.input_ids) << tokenizer.decode(got.input_ids) << "\n"
                                           << tokenizer.decode(want.input_ids);
  EXPECT_EQ(got.labels, want.labels);
}

Json json_messages(const Conversation& conversation) {
  Json out = Json::array();
  if (!conversation.system.empty()) out.push_back({{"role", "system"}, {"content", conversation.system}});
  for (const Message& m : conversation.messages) out.push_back({{"role", m.role}, {"content", m.content}});
  return out;
}

/// Returns a server's ids with the exported chat template: one text, tokenised as a whole.
std::vector<TokenId> served(const std::string& jinja, const Tokenizer& tokenizer,
                            const Conversation& conversation) {
  Json variables{{"messages", json_messages(conversation)},
                 {"add_generation_prompt", conversation.messages.size() % 2 == 1}};
  if (tokenizer.bos_id() >= 0) variables["bos_token"] = tokenizer.bos_token();
  if (tokenizer.eos_id() >= 0) variables["eos_token"] = tokenizer.eos_token();
  return tokenizer.encode(JinjaTemplate(jinja).render(variables)).ids;
}

// ---- conversations ----

TemplateOptions options_in(const Json& c) {
  TemplateOptions out;
  const Json given = c.value("options", Json::object());
  out.cutoff_len = given.value("cutoff_len", out.cutoff_len);
  out.mask_history = given.value("mask_history", false);
  out.train_on_prompt = given.value("train_on_prompt", false);
  if (given.contains("default_system")) out.default_system = given["default_system"].get<std::string>();
  return out;
}

class RowsInFiles : public testing::TestWithParam<const char*> {};

// Each row of the table, exported as a chat template and used as a file, gives the reference's ids and
// labels.
TEST_P(RowsInFiles, GiveTheIdsAndLabelsOfTheReference) {
  const std::string folder = golden_path(std::string("templates/") + GetParam());
  const Json about = read_json(folder + "/template.json");
  Tokenizer tokenizer = Tokenizer::from_folder(folder + "/" + about["tokenizer"].get<std::string>());
  const ChatTemplate row = ChatTemplate::find(about["template"].get<std::string>());
  row.prepare(tokenizer);
  const TestFolder own;
  const ChatTemplate file = file_of(own, jinja_of(row, {}, &tokenizer), tokenizer);
  int compared = 0, tools = 0, masked = 0, cut = 0;
  each_case(folder + "/cases.jsonl", [&](const Json& c, const std::string& where) {
    const std::string why = c["why"].get<std::string>();
    const Json given = c.value("options", Json::object());
    // Features that only the table has: other tool formats, the number of a turn, exchanged roles, an emptied
    // system text, an empty list of tools, calls with text.
    const bool other = given.contains("tool_format") || given.contains("preserve_thinking") ||
                       given.contains("enable_thinking") || c.contains("dropped") || c.contains("refused") ||
                       why == "placeholder idx" || why == "roles exchanged" ||
                       why == "default system emptied" || why == "observation first" ||
                       json_string(c, "tools", "", where) == "[]" || why == "call with thought" ||
                       why == "call in tags" || why == "generation" || why == "tools that are not JSON" ||
                       why == "call that is not JSON";
    if (other || json_string(c, "tools", "", where).find("\"date\"") != std::string::npos) return;
    Conversation conversation;
    for (const auto& m : c["messages"])
      conversation.messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>()});
    conversation.system = json_string(c, "system", "", where);
    conversation.tools = json_string(c, "tools", "", where);
    const TemplateOptions options = options_in(c);
    // The reference has another date.
    if (!conversation.tools.empty() && row.prints_date(options)) return;
    const Example got = file.encode_example(tokenizer, conversation, options);
    const Example want = row.encode_example(tokenizer, conversation, options);
    ASSERT_EQ(got.outcome, Example::Outcome::kept) << where << " " << why << " " << got.reason;
    EXPECT_EQ(got.input_ids, ids_of(c["input_ids"])) << where << " " << why << "\n"
                                                     << tokenizer.decode(got.input_ids) << "\n"
                                                     << tokenizer.decode(want.input_ids);
    EXPECT_EQ(got.labels, want.labels) << where << " " << why;
    ++compared;
    tools += conversation.tools.empty() ? 0 : 1;
    masked += options.mask_history || options.train_on_prompt ? 1 : 0;
    cut += got.truncated ? 1 : 0;
  });
  EXPECT_GE(compared, 30);
  EXPECT_GE(masked, 3);
  EXPECT_GE(cut, 5);
  EXPECT_GE(tools, row.prints_date({}) ? 0 : 1);
}

// Excludes the rows with a token across the boundary of a question and its answer: a word of the small
// vocabulary, or a special token that includes blanks.
INSTANTIATE_TEST_SUITE_P(Rows, RowsInFiles,
                         testing::Values("llama3", "qwen", "chatml", "chatml_new_tokens", "qwen3_nothink",
                                         "default", "mistral", "deepseek", "gemma"),
                         [](const auto& row) { return std::string(row.param); });

TEST(TemplateFile, OfConversationsTrainsEachAnswer) {
  const TestFolder folder;
  Tokenizer tokenizer = tokenizer_of("qwen2");
  const std::string source =
      "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token if m.role == 'assistant' else '' "
      "}}\n"
      "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";
  const ChatTemplate chat = file_of(folder, source, tokenizer);
  const Conversation two = asked("", {"6 times 7", "forty two", "and 8", "56"});
  // A blank that belongs to a word's token is no token boundary, so the pieces are tokenised separately.
  const std::vector<std::string> pieces{"[user] 6 times 7\n[assistant] ",
                                        "forty two" + tokenizer.eos_token() + "\n",
                                        "[user] and 8\n[assistant] ", "56" + tokenizer.eos_token() + "\n"};
  expect_same(chat.encode_example(tokenizer, two), by_hand(tokenizer, pieces), tokenizer);
  TemplateOptions last{.mask_history = true};
  const Example masked = chat.encode_example(tokenizer, two, last);
  EXPECT_EQ(masked.input_ids, by_hand(tokenizer, pieces).input_ids);
  EXPECT_EQ(tokenizer.decode(chat.encode_prompt(tokenizer, two).response_ids), pieces[3]);
  EXPECT_EQ(std::ranges::count_if(masked.labels, [](TokenId id) { return id >= 0; }),
            std::ssize(tokenizer.encode(pieces[3]).ids));
  // Settings apply to the file and to its export.
  last = {.default_system = "be 'brief'"};
  const Example with_system = chat.encode_example(tokenizer, two, last);
  EXPECT_TRUE(tokenizer.decode(with_system.input_ids).starts_with("[system] be 'brief'\n[user] 6"));
  const std::string exported = jinja_of(chat, last, &tokenizer);
  EXPECT_EQ(tokenizer.decode(served(exported, tokenizer, two)), tokenizer.decode(with_system.input_ids));
  EXPECT_EQ(jinja_of(chat, {}, &tokenizer), source) << "the very file";
  EXPECT_EQ(chat.stop_ids(tokenizer), (std::vector<TokenId>{tokenizer.eos_id()}));
}

TEST(TemplateFile, EndsAnswersWithTheTokenThatItWrites) {
  const TestFolder folder;
  Tokenizer tokenizer = tokenizer_of("qwen2");
  const ChatTemplate chat = file_of(
      folder, "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}",
      tokenizer);
  const auto ends = chat.stop_ids(tokenizer);
  EXPECT_NE(std::ranges::find(ends, tokenizer.token_to_id("<|im_end|>")), ends.end());
  EXPECT_NE(told_of_file("own.jinja", chat, tokenizer).find("answers end in <|im_end|>"), std::string::npos);
  const ChatTemplate never =
      file_of(folder, "{% for m in messages %}{{ m.content }}\n{% endfor %}", tokenizer);
  EXPECT_NE(told_of_file("own.jinja", never, tokenizer).find("does not learn to stop"), std::string::npos);
}

// Like templates of reasoning models, which drop the thoughts of earlier answers.
TEST(TemplateFile, ThatWritesEarlierTurnsOtherwiseTrainsTheLastAnswer) {
  const TestFolder folder;
  Tokenizer tokenizer = tokenizer_of("qwen2");
  const ChatTemplate chat = file_of(
      folder,
      "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last or m.role == 'user' else "
      "m.content.split('THOUGHT')[-1] }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
      tokenizer);
  const Conversation two = asked("", {"q1", "a THOUGHT b", "q2", "c THOUGHT d"});
  const Example all = chat.encode_example(tokenizer, two);
  EXPECT_EQ(all.outcome, Example::Outcome::refused);
  EXPECT_NE(all.reason.find("before message 3"), std::string::npos) << all.reason;
  EXPECT_NE(all.reason.find("mask_history: true"), std::string::npos) << all.reason;
  expect_same(chat.encode_example(tokenizer, two, {.mask_history = true}),
              by_hand(tokenizer, {"[user]q1\n[assistant] b\n[user]q2\n[assistant]", "c THOUGHT d\n"}),
              tokenizer);
  EXPECT_EQ(
      tokenizer.decode(chat.encode_prompt(tokenizer, asked("", {"q1", "a THOUGHT b", "q2"})).prompt_ids),
      "[user]q1\n[assistant] b\n[user]q2\n[assistant]");
}

// The generation prompt is not the beginning of every answer.
TEST(TemplateFile, ThatWritesAnEarlierAnswerOtherwiseTrainsTheLastOne) {
  const TestFolder folder;
  Tokenizer tokenizer = tokenizer_of("qwen2");
  const ChatTemplate chat = file_of(folder,
                                    "{% for m in messages %}[{{ m.role }}]{{ '!' if m.content == '42.' else "
                                    "'' }}{{ m.content }}\n{% endfor %}"
                                    "{% if add_generation_prompt %}[assistant]!{% endif %}",
                                    tokenizer);
  const Conversation two = asked("", {"q1", "a", "q2", "!b"});
  EXPECT_NE(chat.encode_example(tokenizer, two).reason.find("with the answer it writes \"a"),
            std::string::npos);
  expect_same(chat.encode_example(tokenizer, two, {.mask_history = true}),
              by_hand(tokenizer, {"[user]q1\n[assistant]a\n[user]q2\n[assistant]!", "b\n"}), tokenizer);
  EXPECT_EQ(chat.encode_example(tokenizer, asked("", {"q", "a"}), {.mask_history = true}).outcome,
            Example::Outcome::refused);
}

// ---- questions ----

class Questions : public testing::TestWithParam<const char*> {};

TEST_P(Questions, AreFilledInAsWrittenByHand) {
  const TestFolder folder;
  Tokenizer tokenizer = tokenizer_of(GetParam());
  const ChatTemplate chat = file_of(folder, kQuestion, tokenizer);
  const auto plain = tokenizer.encode("x", {.add_special = true}).ids;
  const std::string begin = plain.front() == tokenizer.bos_id() ? tokenizer.bos_token() : "";
  const std::string first = begin + "<|system|>\nbe brief\n<|user|>\n6 times 7?\n<|assistant|>\n";
  const std::string answer = "42" + tokenizer.eos_token();
  const Conversation one = asked("be brief", {" 6 times 7?", "42"});
  const Example got = chat.encode_example(tokenizer, one);
  ASSERT_EQ(got.outcome, Example::Outcome::kept) << got.reason;
  EXPECT_EQ(got.input_ids, tokenizer.encode(first + answer).ids) << tokenizer.decode(got.input_ids);
  const auto prompt = tokenizer.encode(first).ids;
  for (std::size_t i = 0; i < got.labels.size(); ++i)
    EXPECT_EQ(got.labels[i], i < prompt.size() ? kIgnore : got.input_ids[i]) << i;
  EXPECT_EQ(chat.encode_prompt(tokenizer, asked("be brief", {" 6 times 7?"})).prompt_ids, prompt);
  EXPECT_EQ(chat.stop_ids(tokenizer), (std::vector<TokenId>{tokenizer.eos_id()}));
  // Without a system text, and with several turns.
  EXPECT_EQ(chat.encode_example(tokenizer, asked("", {"6 times 7?", "42"})).input_ids,
            tokenizer.encode(begin + "<|user|>\n6 times 7?\n<|assistant|>\n" + answer).ids);
  const Conversation two = asked("be brief", {"6 times 7?", "42", "and 8?", "56"});
  EXPECT_EQ(
      chat.encode_example(tokenizer, two).input_ids,
      tokenizer.encode(first + answer + "<|user|>\nand 8?\n<|assistant|>\n56" + tokenizer.eos_token()).ids);
  // The export is a chat template with equal results.
  const std::string exported = jinja_of(chat, {}, &tokenizer);
  for (const Conversation& c :
       {one, two, asked("", {"6 times 7?", "42"}), asked("", {"6 times 7?", "42", "and 8?", "56"})}) {
    EXPECT_EQ(served(exported, tokenizer, c), chat.encode_example(tokenizer, c).input_ids) << exported;
    Conversation question = c;
    question.messages.pop_back();
    EXPECT_EQ(served(exported, tokenizer, question), chat.encode_prompt(tokenizer, question).prompt_ids);
  }
  const TemplateOptions usual{.default_system = "by default"};
  const Conversation bare = asked("", {"6 times 7?", "42"});
  EXPECT_EQ(served(jinja_of(chat, usual, &tokenizer), tokenizer, bare),
            chat.encode_example(tokenizer, bare, usual).input_ids);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Questions,
                         testing::Values("qwen2", "llama3", "llama2", "gemma", "mistral"),
                         [](const auto& row) { return std::string(row.param); });

TEST(TemplateFile, OfQuestionsTakesTheNamesOfRowsAndTokens) {
  const TestFolder folder;
  for (const char* name : {"user", "instruction", "prompt", "question", "input"}) {
    Tokenizer tokenizer = tokenizer_of("llama3");
    const std::string own = std::string("{{ bos_token }}Q: {{ ") + name + " }} A:";
    const ChatTemplate chat = file_of(folder, own, tokenizer);
    EXPECT_EQ(tokenizer.decode(chat.encode_example(tokenizer, asked("", {"why", "so"})).input_ids),
              tokenizer.bos_token() + "Q: why A:so" + tokenizer.eos_token());
    EXPECT_NE(told_of_file("own.jinja", chat, tokenizer).find("filled in from '" + std::string(name)),
              std::string::npos);
  }
  // SFT-Play has rows with user and assistant, and rows with input and target.
  Tokenizer tokenizer = tokenizer_of("qwen2");
  const ChatTemplate either =
      file_of(folder, "{% if user %}{{ user }}{% else %}{{ input }}{% endif %}:", tokenizer);
  EXPECT_EQ(tokenizer.decode(either.encode_prompt(tokenizer, asked("", {"why"})).prompt_ids), "why:");
  const Example tools = either.encode_example(
      tokenizer, {.messages = {{"user", "why"}, {"assistant", "so"}}, .system = {}, .tools = "[]"});
  EXPECT_EQ(tools.outcome, Example::Outcome::refused);
  EXPECT_NE(tools.reason.find("writes no tools"), std::string::npos) << tools.reason;
}

// ---- files that cannot be used ----

struct Unusable {
  const char *source, *what, *found, *where;
};

TEST(TemplateFile, ThatCannotBeUsedIsToldOf) {
  const TestFolder folder;
  const std::vector<Unusable> all{
      {"{{ user }}\n{% if x %}", "has an error, or uses unsupported Jinja", "'endif' is missing",
       "own.jinja:2"},
      {"{{ user }}\n\n{{ user | wordwrap }}", "cannot be rendered", "no filter 'wordwrap'", "own.jinja:3"},
      {"Hello", "uses no question", "no variables", "own.jinja"},
      {"{{ system }}", "uses no question", "'system'", "own.jinja"},
      {"{{ user }} {{ context }}", "uses unknown variables", "'context'", "own.jinja"},
      {"{{ user }}: {{ assistant }}", "uses unknown variables", "'assistant'", "own.jinja"},
      {"{{ instruction }}{{ input }}", "uses unknown variables", "'input'", "own.jinja"},
      {"{% if user == 'x' %}{{ user }}{% endif %} ", "writes nothing", "an empty text", "own.jinja"},
      {"{% if user %}Hi{% endif %}", "does not write the question", "Hi", "own.jinja"},
      {"{% macro m(x) %}{{ x }}{% endmacro %}{{ m(user) }}",
       "cannot be converted into a template of conversations", "macros", "own.jinja"},
      {"{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
       "does not write the answer", "", "own.jinja"},
      {"{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
       "not write an answer as a continuation", "in place of \"1What is 6", "own.jinja"},
      {"{% for m in messages %}{{ m.content }}\n{{ raise_exception('no') }}{% endfor %}",
       "cannot be rendered", "no", "own.jinja:2"}};
  for (const Unusable& one : all) {
    Tokenizer tokenizer = tokenizer_of("qwen2");
    try {
      file_of(folder, one.source, tokenizer);
      ADD_FAILURE() << "it was taken: " << one.source;
    } catch (const Error& e) {
      const Problem& p = e.problem();
      EXPECT_EQ(p.code, ExitCode::usage);
      EXPECT_NE(p.what.find(one.what), std::string::npos) << one.source << "\n" << e.what();
      EXPECT_NE(p.found.find(one.found), std::string::npos) << one.source << "\n" << e.what();
      EXPECT_TRUE(p.where.ends_with(one.where)) << one.source << "\n" << e.what();
      EXPECT_FALSE(p.expected.empty() || p.fix.empty()) << e.what();
    }
  }
}

TEST(TemplateFile, KnowsSomeOptionsNot) {
  const TestFolder folder;
  Tokenizer tokenizer = tokenizer_of("qwen2");
  const ChatTemplate chat = file_of(folder, kQuestion, tokenizer);
  for (const TemplateOptions& options :
       {TemplateOptions{.preserve_thinking = true}, TemplateOptions{.tool_format = "qwen"},
        TemplateOptions{.split_special_tokens = true}, TemplateOptions{.date = "2026-03-09"}}) {
    EXPECT_THROW(chat.check(options), Error);
    EXPECT_EQ(chat.encode_example(tokenizer, asked("", {"q", "a"}), options).outcome,
              Example::Outcome::refused);
  }
}

}  // namespace
}  // namespace octet::text::template_file_test
