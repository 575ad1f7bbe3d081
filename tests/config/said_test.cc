// All texts about a configuration: translated keys, notes, warnings and errors.
#include <algorithm>
#include <functional>
#include <utility>

#include "config/explained.h"
#include "config/support.h"
#include "octet/config/derive.h"
#include "octet/config/warnings.h"
#include "support/page.h"

namespace octet::config::test::said_test {
namespace {

/// A question of a page: keys in YAML, `> key=value` for the command line, `$ NAME=value` for the
/// environment, and `! alone` to leave out the three required keys.
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

/// Returns the lines of explained() with single blanks; without the lines of kBase unless `alone`.
std::string keys_of(const Resolved& resolved, bool alone) {
  std::string text;
  for (const std::string& line : split(explained(resolved, false), '\n')) {
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
    for (const std::string& warning : resolved.warnings) text += "warning: " + warning + "\n";
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

// axolotl's defaults are the first answer and are left out of the others.
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

/// Returns values that follow from numbers: the samples per step on so many ranks, and counts of steps.
std::string derived_from(const std::string& text) {
  std::int64_t world = 1, total = 100, epoch = 7;
  std::string rest, said;
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with("% world ")) {
      world = std::stoll(line.substr(8));
    } else if (line.starts_with("% steps ")) {
      total = epoch = std::stoll(line.substr(8));
    } else {
      rest += line + "\n";
    }
  }
  const Config c = read(rest).config;
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  const auto attempt = [&](const std::function<std::string()>& body) {
    try {
      said += body();
    } catch (const Error& e) {
      said += std::string(e.what()) + "\n";
    }
  };
  attempt([&] {
    const Batch batch = resolve_batch(c, world);
    return number(batch.micro) + " x " + number(batch.accumulation) + " x " + number(batch.world) + " = " +
           number(batch.global) + ", evaluated by " + number(evaluation_batch(c, batch.micro)) + "\n";
  });
  if (c.auto_find_batch_size)
    attempt([&] {
      std::string found;
      for (const std::int64_t micro : possible_micro_batches(c, world)) found += number(micro) + " ";
      return found + "may be found\n";
    });
  attempt([&] {
    return "of " + number(total) + " steps " + number(warmup_steps(c, total)) +
           " warm up, a checkpoint every " + number(interval_steps(c.save_steps, total)) + "; " +
           number(total_steps(c, epoch)) + " steps where an epoch has " + number(epoch) + "\n";
  });
  for (const Config& stored : storages(c))
    said += "stored: " + stored.param_dtype + " " + stored.grad_dtype + " " + stored.optim_dtype + "\n";
  return said;
}

TEST(Said, OfStepsAndStorage) {
  octet::test::expect_page("config/said/derived.txt", derived_from);
}

// A missing key here would let a resumed run compute other numbers.
TEST(Said, OfTheKeysThatDecideNumbers) {
  octet::test::expect_page("config/said/numbers.txt", [](const std::string& question) {
    std::string text;
    if (question == "which keys\n") {
      for (const Field& field : schema()) text += field.resume ? field.name + "\n" : "";
      return text;
    }
    const std::size_t bar = question.find("|\n");
    const Config saved = read(question.substr(0, bar)).config, now = read(question.substr(bar + 2)).config;
    for (const std::string& line : resume_differences(saved, now)) text += line + "\n";
    return text + (resume_hash(saved) == resume_hash(now) ? "one run\n" : "another run\n");
  });
}

// The configuration file of a run, which loads to the same configuration.
TEST(Said, OfAWholeConfiguration) {
  octet::test::expect_page("config/said/whole.txt", [](const std::string& question) {
    const Resolved r = read(question);
    const std::string yaml = r.to_yaml();
    EXPECT_EQ(load_text(yaml, "again.yaml", {}, quiet()).to_yaml(), yaml);
    return yaml + "\n" + explained(r);
  });
}

/// Rows of the tables of other trainers' keys: our key, or why the key has no effect.
TEST(Said, OfEveryKeyOfOtherTrainers) {
  octet::test::expect_page("config/said/foreign_keys.txt", [](const std::string& table) {
    std::string text;
    for (const ForeignKey& key : table == "deepspeed\n" ? deepspeed_keys() : dialect_keys(trim(table)))
      text += key.path + (key.becomes.empty() ? ": " + key.reason : " -> " + key.becomes) + "\n";
    return text;
  });
}

}  // namespace
}  // namespace octet::config::test::said_test
