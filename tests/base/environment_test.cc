#include "octet/base/environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>
#include <stdexcept>

#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet::environment_test {
namespace {

Problem refusal_of(const std::map<std::string, std::string>& environment) {
  try {
    require_known_variables(environment);
  } catch (const Error& error) {
    return error.problem();
  }
  return {};
}

TEST(Environment, ReadsWhatTheTableNamesAndNothingElse) {
  ::setenv("OCTETRUN_SOAK_STEPS", "7", 1);
  EXPECT_STREQ(environment_variable("OCTETRUN_SOAK_STEPS"), "7");
  ::unsetenv("OCTETRUN_SOAK_STEPS");
  EXPECT_EQ(environment_variable("OCTETRUN_SOAK_STEPS"), nullptr);
  EXPECT_THROW(environment_variable("SHELL"), std::logic_error);
}

TEST(Environment, AnUnknownNameUnderTheProgramsPrefixIsRefusedWithTheNearestOne) {
  const std::string wrong = std::string(kOwnPrefix) + "SHARE_GPU";
  const Problem problem = refusal_of({{"HOME", "/root"}, {wrong, "1"}});
  EXPECT_EQ(problem.what, "there is no environment variable " + wrong);
  EXPECT_EQ(problem.found, wrong + "=1");
  EXPECT_EQ(problem.fix, "did you mean OCTETRUN_SHARE_GPUS?");
  EXPECT_EQ(problem.code, ExitCode::usage);
}

TEST(Environment, AVariableUnderThePrefixOfKeysIsRefusedWithItsName) {
  const std::string keys = "OCTET_";
  EXPECT_EQ(refusal_of({{keys + "OVERLAP", "always"}}).fix, "did you mean OCTETRUN_OVERLAP?");
  EXPECT_EQ(refusal_of({{keys + "SEED", "3"}, {keys + "SEEED", "3"}}).what, "")
      << "the configuration's affair";
  EXPECT_EQ(refusal_of({{keys + "HOME", "3"}}).what, "") << "not of the program's own";
}

TEST(Environment, WhatAVariableCannotSayIsRefusedWithWhatItCan) {
  const Problem problem = refusal_of({{"OCTETRUN_RECORDING", "maybe"}});
  EXPECT_EQ(problem.what, "the environment variable OCTETRUN_RECORDING has an invalid value");
  EXPECT_EQ(problem.expected, "on or off");
  EXPECT_EQ(problem.found, "OCTETRUN_RECORDING=maybe");
  EXPECT_EQ(problem.code, ExitCode::usage);
  EXPECT_EQ(refusal_of({{"OCTETRUN_OVERLAP", "true"}}).expected, "always");
  EXPECT_EQ(refusal_of({{"OCTETRUN_SINGLE", "yes"}}).expected, "0 or 1");
  EXPECT_EQ(refusal_of({{"OCTETRUN_TEST_CARRIER", "tcp"}}).expected, "peer, nccl or host");
  EXPECT_EQ(refusal_of({{"OCTETRUN_RECORDING", "off"}, {"OCTETRUN_EARLY_LAUNCH", ""}}).what, "");
  EXPECT_EQ(refusal_of({{"OCTETRUN_FAILPOINT", "before_write:3"},
                        {"OCTETRUN_BREAK_STEP", "gpu:4"},
                        {"OCTETRUN_CACHE", "/tmp"},
                        {"OCTETRUN_COMPUTE_WORKER", "yes"}})
                .what,
            "")
      << "words that stand for others";
}

TEST(Environment, NumbersAreReadWholeAndFromTheLeastOnwards) {
  const Problem problem = refusal_of({{"OCTETRUN_START_TIMEOUT", "soon"}});
  EXPECT_EQ(problem.what, "the environment variable OCTETRUN_START_TIMEOUT has an invalid value");
  EXPECT_EQ(problem.expected, "seconds, at least 1");
  EXPECT_EQ(problem.found, "OCTETRUN_START_TIMEOUT=soon");
  EXPECT_EQ(problem.fix, "set it to a number in this range, or unset it");
  EXPECT_EQ(problem.code, ExitCode::usage);
  for (const auto& [name, text] : {std::pair{"OCTETRUN_START_TIMEOUT", "0"},
                                   {"OCTETRUN_START_TIMEOUT", "60s"},
                                   {"OCTETRUN_MEMORY_KEEP", "-1"},
                                   {"OCTETRUN_SURVIVORS", "2.5"},
                                   {"OCTETRUN_SURVIVORS", "nan"}}) {
    EXPECT_NE(refusal_of({{name, text}}).what, "") << name << "=" << text;
  }
  EXPECT_EQ(refusal_of({{"OCTETRUN_START_TIMEOUT", "3"},
                        {"OCTETRUN_MEMORY_KEEP", "0.5"},
                        {"OCTETRUN_SURVIVORS", "2"},
                        {"OCTETRUN_SOAK_STEPS", ""}})
                .what,
            "");
}

TEST(Environment, KnownAndForeignVariablesAreLeftAlone) {
  EXPECT_EQ(refusal_of({{"OCTETRUN_OVERLAP", "always"}, {"NCCL_DEBUG", "INFO"}, {"OCTETX", "1"}}).what, "");
}

TEST(Environment, EveryRowIsNamedOnceAndUnderItsPrefix) {
  std::set<std::string> names;
  for (const EnvironmentVariable& variable : environment_variables()) {
    const std::string name = variable.name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(name.starts_with(kOwnPrefix), variable.use != VariableUse::foreign) << name;
    EXPECT_NE(environment_help().find(name + "  ("), std::string::npos) << name;
  }
}

// OCTETRUN_WRITE_DOCS=1 writes the page instead of comparing it.
TEST(Environment, ThePageInDocsIsTheTable) {
  const std::string path = std::string(OCTET_SOURCE_DIR) + "/docs/environment.md";
  if (environment_variable("OCTETRUN_WRITE_DOCS") != nullptr)
    write_file_atomically(path, environment_markdown());
  ASSERT_TRUE(path_exists(path));
  EXPECT_EQ(read_file(path), environment_markdown())
      << "docs/environment.md is old: run OCTETRUN_WRITE_DOCS=1 base_tests --gtest_filter='*ThePageInDocs*'";
}

}  // namespace
}  // namespace octet::environment_test
