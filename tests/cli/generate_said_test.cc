// The command line of `trainer generate`, as exact texts. No model is loaded.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "../src/cli/command.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "support/page.h"
#include "support/program.h"

namespace octet::test::generate_said_test {
namespace {

std::string answer_of(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const Error& e) {
    return std::string(e.what()) + "\nexit code " + std::to_string(static_cast<int>(e.code())) + "\n";
  }
}

/// A question is the command line after the model.
TEST(Said, OfCallsOfGenerate) {
  const TemporaryFolder folder("calls");
  spill(folder / "rows.jsonl", "{\"question\":\"q\"}\n");
  spill(folder / "prompt.txt", "{text}");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  expect_page("cli/said/generate_calls.txt", [](const std::string& line) {
    cli::Arguments words{"no-model"};
    for (const std::string& word : split(trim(line), ' '))
      if (!word.empty()) words.push_back(word);
    return answer_of([&] { return "exit code " + std::to_string(cli::generate_command(words)) + "\n"; });
  });
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace octet::test::generate_said_test
