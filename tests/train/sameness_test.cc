// Ranks with different starts.
#include "../src/train/faults/sameness.h"

#include <gtest/gtest.h>

#include <mutex>

#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"
#include "octet/config/config.h"
#include "support/program.h"

namespace octet::train::sameness_test {
namespace {

/// Returns the error of the ranks, each with separate facts: one message, the others silent.
std::string refusal(const std::vector<Facts>& facts) {
  std::mutex mutex;
  std::string message;
  int silent = 0;
  comm::run_ranks_as_threads({.ranks = static_cast<int>(facts.size())}, [&](comm::Job& job, Device&) {
    try {
      require_same(job, facts[static_cast<std::size_t>(job.rank())]);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_TRUE(error.problem().agreed);
      if (error.problem().what.empty()) {
        ++silent;
      } else {
        message = error.what();
      }
    }
  });
  EXPECT_EQ(silent, message.empty() ? 0 : static_cast<int>(facts.size()) - 1);
  return message;
}

const Facts kFacts{{"learning_rate", "1e-05"}, {"max_steps", "7"}, {"the program's version", "1"}};

Facts with(const std::string& name, const std::string& value) {
  Facts facts = kFacts;
  facts[name] = value;
  return facts;
}

TEST(Sameness, OfAllRanksIsSilent) {
  EXPECT_EQ(refusal({kFacts, kFacts, kFacts}), "");
  EXPECT_EQ(refusal({kFacts}), "");
}

TEST(Sameness, ADifferenceNamesRankHostKeyAndBothValues) {
  const std::string message = refusal({kFacts, kFacts, with("learning_rate", "2e-05")});
  for (const char* part : {"learning_rate: 1e-05 (rank 0 on ", "learning_rate: 2e-05 (rank 2 on "}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(message.find("max_steps"), std::string::npos) << message;
}

TEST(Sameness, ManyDifferencesAreCounted) {
  Facts other = kFacts;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) other[name] = "1";
  const std::string message = refusal({kFacts, other});
  EXPECT_NE(message.find("  found:    a: 1, b: 1, c: 1, d: 1, e: 1 and 2 more (rank 1 on "),
            std::string::npos)
      << message;
  other = kFacts;
  for (const char* name : {"a", "b", "c", "d", "e"}) other[name] = "1";
  EXPECT_EQ(refusal({kFacts, other}).find(" more"), std::string::npos);
}

TEST(Sameness, WhatOneRankLacksIsNotSet) {
  const std::string message = refusal({kFacts, with("environment OCTET_SEED", "3")});
  EXPECT_NE(message.find("environment OCTET_SEED: not set (rank 0"), std::string::npos) << message;
  EXPECT_NE(message.find("environment OCTET_SEED: 3 (rank 1"), std::string::npos) << message;
}

TEST(Sameness, FactsAreTheProgramEveryKeyAndItsOwnVariables) {
  config::Config config;
  const Facts base = facts_of_start("1", config, {});
  EXPECT_GT(base.at("the program's build").size(), 8u);
  EXPECT_NE(base, facts_of_start("2", config, {}));
  config.max_steps = 3;
  EXPECT_EQ(facts_of_start("1", config, {}).at("max_steps"), "3");
  EXPECT_EQ(facts_of_start("1", config, {{"OCTETRUN_OVERLAP", "always"}}).at("environment OCTETRUN_OVERLAP"),
            "always");
  EXPECT_EQ(facts_of_start("1", config, {{"OCTET_SEED", "4"}}).at("environment OCTET_SEED"), "4");
  // Variables of a host, and of other programs.
  EXPECT_EQ(facts_of_start("1", config, {{"OCTETRUN_CACHE", "/tmp/a"}, {"HOME", "/root"}}),
            facts_of_start("1", config, {}));
}

// Each host reads its copy of a template's file.
TEST(Sameness, FactsAreTheBytesOfTheTemplatesFile) {
  const test::TemporaryFolder folder("sameness");
  config::Config config;
  config.template_name = folder / "own.jinja";
  const auto now = [&] { return facts_of_start("1", config, {}).at("the file of the template"); };
  EXPECT_EQ(now(), "not there");
  test::spill(folder / "own.jinja", "{{ user }}");
  const std::string before = now();
  test::spill(folder / "own.jinja", "{{ user }}!");
  EXPECT_NE(now(), before);
  config.template_name = "chatml";
  EXPECT_FALSE(facts_of_start("1", config, {}).contains("the file of the template"));
}

}  // namespace
}  // namespace octet::train::sameness_test
