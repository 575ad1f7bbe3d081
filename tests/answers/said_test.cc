// How the rows of a file and the settings of a model are read, as exact texts. No model is loaded.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <regex>

#include "../src/answers/answer_rows.h"
#include "octet/answers/generate_options.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "support/page.h"
#include "support/program.h"

namespace octet::test::answers_said_test {
namespace {

std::string without(std::string text, const std::string& folder) {
  for (std::size_t at; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
  return std::regex_replace(text, std::regex("(line [0-9]+, )?column [0-9]+: [^\n]*"),
                            "(the parser's words)");
}

std::string answer_of(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const Error& e) {
    return std::string(e.what()) + "\nexit code " + std::to_string(static_cast<int>(e.code())) + "\n";
  }
}

/// A question is a row in JSON.
TEST(Said, OfQuestions) {
  const TemporaryFolder folder("questions");
  expect_page("answers/said/questions.txt", [&](const std::string& row) {
    return without(answer_of([&] {
                     spill(folder / "a.jsonl", row);
                     const answers::QuestionFile file(folder / "a.jsonl", {});
                     const answers::Question q = file.read(0);
                     std::string text;
                     if (!q.prompt_ids.empty()) text += "ids " + Json(q.prompt_ids).dump() + "\n";
                     if (!q.system.empty()) text += "system: " + q.system + "\n";
                     if (!q.tools.empty()) text += "tools: " + q.tools + "\n";
                     for (const data::Turn& turn : q.turns) text += turn.role + ": " + turn.content + "\n";
                     if (q.plain) text += "without a template\n";
                     if (q.has_answer || !q.answer.empty())
                       text += (q.has_answer ? "expected: " : "no answer, yet: ") + q.answer + "\n";
                     return text;
                   }),
                   folder.path() + "/");
  });
}

TEST(Shards, AreThePartsOfTheRowsInTheirOrder) {
  const TemporaryFolder folder("shards");
  std::string rows;
  for (int i = 0; i < 7; ++i) rows += "{\"question\":\"" + std::to_string(i) + "\"}\n";
  spill(folder / "a.jsonl", rows);
  const auto of = [&](const std::string& shard) {
    const answers::QuestionFile file(folder / "a.jsonl", answers::parse_shard(shard));
    std::string text;
    for (std::int64_t i = 0; i < file.size(); ++i) {
      text += file.read(i).text();
      EXPECT_EQ(std::to_string(file.number(i)), file.read(i).text());
      EXPECT_EQ(file.where(i), folder / ("a.jsonl:" + std::to_string(file.number(i) + 1)));
    }
    return text;
  };
  EXPECT_EQ(of("1/1"), "0123456");
  EXPECT_EQ(of("1/3") + " " + of("2/3") + " " + of("3/3"), "01 23 456");
  EXPECT_EQ(of("8/8"), "6");
  EXPECT_EQ(of("1/8"), "");
  for (const char* wrong : {"", "2", "/2", "1/", "0/2", "3/2", "1/2/3", "1/2x", "x/2", "-1/2", "1 /2"})
    EXPECT_THROW(answers::parse_shard(wrong), Error) << wrong;
}

/// A question is generation_config.json, and in a second line the settings of the command line.
TEST(Said, OfAModelsOwnSettings) {
  expect_page("answers/said/model_settings.txt", [](const std::string& question) {
    const TemporaryFolder folder("settings");
    const std::vector<std::string> lines = split(question, '\n');
    spill(folder / "generation_config.json", lines.at(0));
    std::vector<std::string> given;
    if (lines.size() > 1 && !lines[1].empty())
      for (const std::string& name : split(lines[1], ' ')) given.push_back(name);
    return without(answer_of([&] {
                     answers::GenerateOptions o;
                     o.answers.sampling.seed = 7;
                     const std::string taken = answers::take_model_defaults(o, folder.path(), given);
                     const generate::Sampling& s = o.answers.sampling;
                     return "said: " + taken + "\nused: " +
                            Json{{"temperature", s.temperature},
                                 {"top_p", s.top_p},
                                 {"top_k", s.top_k},
                                 {"min_p", s.min_p},
                                 {"repetition_penalty", s.repetition_penalty},
                                 {"seed", s.seed},
                                 {"max_new", o.answers.max_new},
                                 {"eos", o.eos_ids}}
                                .dump() +
                            "\n";
                   }),
                   folder.path() + "/");
  });
}

}  // namespace
}  // namespace octet::test::answers_said_test
