// Every sentence that a configuration is answered with: what its keys become, notes, doubts and refusals.
#include <algorithm>
#include <utility>

#include "config/support.h"
#include "octet/config/lint.h"
#include "support/page.h"

namespace octet::config::test {
namespace {

/// A file of a page: keys in YAML, `> key=value` for the command line, `$ NAME=value` for the environment,
/// and
/// `! alone` where the three keys that a training needs do not stand before them.
struct Question {
  std::string yaml;
  Strings arguments;
  Environment environment;
  bool alone = false, training = true;
};

Question read_question(const std::string& text) {
  Question q;
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with("> ")) {
      q.arguments.push_back(line.substr(2));
    } else if (line.starts_with("$ ")) {
      const std::size_t sign = line.find('=');
      q.environment[line.substr(2, sign - 2)] = line.substr(sign + 1);
    } else if (line == "! alone") {
      q.alone = true;
    } else if (line == "! no training") {
      q.training = false;
    } else if (!line.empty()) {
      q.yaml += line + "\n";
    }
  }
  return q;
}

/// Lines of explain() with single blanks; unless `alone`, without those of kBase.
std::string keys_of(const Resolved& resolved, bool alone) {
  std::string text;
  for (const std::string& line : split(resolved.explain(false), '\n')) {
    const bool base =
        line.ends_with("test.yaml:1)") || line.ends_with("test.yaml:2)") || line.ends_with("test.yaml:3)");
    if (line.empty() || (base && !alone)) continue;
    for (const char c : line) {
      if (c != ' ' || text.empty() || text.back() != ' ') text += c;
    }
    text += "\n";
  }
  return text;
}

std::string answer_to(const Question& q) {
  try {
    const Resolved resolved = load_text((q.alone ? "" : kBase) + q.yaml, "test.yaml", q.arguments,
                                        {.for_training = q.training, .environment = q.environment});
    std::string text = keys_of(resolved, q.alone);
    for (const std::string& note : resolved.notes) text += "note: " + note + "\n";
    return text.empty() ? "nothing is set\n" : text;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage) << q.yaml;
    return std::string(e.what()) + "\n";
  }
}

std::string said_to(const std::string& text) {
  return answer_to(read_question(text));
}

TEST(Said, OfRules) {
  octet::test::expect_page("config/said/rules.txt", said_to);
}

TEST(Said, OfValues) {
  octet::test::expect_page("config/said/values.txt", said_to);
}

TEST(Said, OfDeepSpeed) {
  octet::test::expect_page("config/said/deepspeed.txt", said_to);
}

TEST(Said, OfSftPlayAndVerl) {
  octet::test::expect_page("config/said/dialects.txt", said_to);
}

// Its defaults, which are the first answer, are left out of the others.
TEST(Said, OfAxolotl) {
  const Strings defaults = split(said_to("! alone\n! no training\nbase_model: m\n"), '\n');
  bool first = true;
  octet::test::expect_page("config/said/axolotl.txt", [&](const std::string& text) {
    const std::string all = said_to(text);
    if (std::exchange(first, false)) return all;
    std::string own;
    for (const std::string& line : split(all, '\n')) {
      if (std::ranges::find(defaults, line) == defaults.end()) own += line + "\n";
    }
    return own.empty() ? "the defaults\n" : own;
  });
}

TEST(Said, OfTheEnvironmentAndTheCommandLine) {
  octet::test::expect_page("config/said/command_line.txt", said_to);
}

TEST(Said, OfDoubts) {
  octet::test::expect_page("config/said/doubts.txt", [](const std::string& text) {
    const Question q = read_question(text);
    std::string all;
    for (const std::string& doubt : doubts(read(q.yaml, q.arguments))) all += "doubt: " + doubt + "\n";
    return all.empty() ? "no doubt\n" : all;
  });
}

/// Rows of the tables of other trainers' keys: what each becomes, or why it does nothing.
TEST(Said, OfEveryKeyOfOtherTrainers) {
  octet::test::expect_page("config/said/foreign_keys.txt", [](const std::string& table) {
    std::string text;
    for (const ForeignKey& key : table == "deepspeed\n"  ? deepspeed_keys()
                                 : table == "dialects\n" ? dialect_keys()
                                                         : axolotl_dialect_keys())
      text += key.path + (key.becomes.empty() ? ": " + key.reason : " -> " + key.becomes) + "\n";
    return text;
  });
}

}  // namespace
}  // namespace octet::config::test
