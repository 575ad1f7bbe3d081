// Pages of questions with their whole answers, word by word: messages, notes, reports. A page holds what no
// single expectation would name, the second branch of a sentence and the figures in it.
//
//   >>> why this question is asked
//   the question
//   ---
//   the answer
//
// OCTETRUN_WRITE_DOCS=1 writes a page's answers instead of comparing them; what changed is then read in the
// diff.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"

namespace octet::test {

struct PageCase {
  std::string title, question, answer;
};

/// The cases of a page. `head`: the text before the first case.
inline std::vector<PageCase> read_page(const std::string& path, std::string& head) {
  std::vector<PageCase> cases;
  std::string* part = &head;
  std::vector<std::string> lines = split(read_file(path), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) {
    if (line.starts_with(">>>")) {
      cases.push_back({.title = std::string(trim(line.substr(3))), .question = "", .answer = ""});
      part = &cases.back().question;
    } else if (line == "---" && !cases.empty() && part == &cases.back().question) {
      part = &cases.back().answer;
    } else {
      *part += line + "\n";
    }
  }
  return cases;
}

/// Asks every question of a page, and expects its answer.
inline void expect_page(const std::string& name, const std::function<std::string(const std::string&)>& ask) {
  const std::string path = OCTET_SOURCE_DIR "/tests/" + name;
  std::string page;
  const std::vector<PageCase> cases = read_page(path, page);
  EXPECT_FALSE(cases.empty()) << path;
  for (const PageCase& c : cases) {
    std::string answer = ask(c.question);
    if (answer.empty() || answer.back() != '\n') answer += '\n';
    EXPECT_TRUE(answer == c.answer || environment_variable("OCTETRUN_WRITE_DOCS") != nullptr)
        << path << ": " << c.title << "\nasked:\n"
        << c.question << "expected:\n"
        << c.answer << "found:\n"
        << answer;
    page += ">>>" + (c.title.empty() ? "" : " " + c.title) + "\n" + c.question + "---\n" + answer;
  }
  if (environment_variable("OCTETRUN_WRITE_DOCS") != nullptr) write_file_atomically(path, page);
}

}  // namespace octet::test
