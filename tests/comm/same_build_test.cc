// Ranks of different programs.
#include "job/same_build.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"

namespace octet::comm::same_build_test {
namespace {

TEST(SameBuild, CopiesOfOneProgramAreAlike) {
  const std::string one = introduction("0.1.0", "abc", "node-a"),
                    other = introduction("0.1.0", "abc", "node-b");
  EXPECT_EQ(one.size(), kIntroductionBytes);
  EXPECT_NO_THROW(require_same_build({one, other}, 0));
  EXPECT_NO_THROW(require_same_build({introduction("0.1.0", "", "a"), introduction("0.1.0", "", "b")}, 1));
}

TEST(SameBuild, OtherVersionsAndBuildsAreNamedByOneRank) {
  const std::string long_host(1000, 'h');
  for (const auto& [version, build] : {std::pair{"0.2.0", "abc"}, {"0.1.0", "abd"}}) {
    const std::vector<std::string> told{introduction("0.1.0", "abc", "node-a"),
                                        introduction("0.1.0", "abc", "node-a"),
                                        introduction(version, build, long_host)};
    EXPECT_EQ(told.back().size(), kIntroductionBytes);
    try {
      require_same_build(told, 0);
      FAIL() << version << build;
    } catch (const Error& error) {
      const Problem& problem = error.problem();
      EXPECT_TRUE(problem.agreed);
      EXPECT_EQ(problem.code, ExitCode::usage);
      EXPECT_EQ(problem.expected,
                "the program's version: 0.1.0, the program's build: abc (rank 0 on node-a)");
      EXPECT_TRUE(problem.found.starts_with("the program's version: " + std::string(version) +
                                            ", the program's build: " + build + " (rank 2 on hhh"))
          << problem.found;
    }
    try {
      require_same_build(told, 1);
      FAIL() << "silent, and not at ease";
    } catch (const Error& error) {
      EXPECT_EQ(error.problem().what, "");
      EXPECT_TRUE(error.problem().agreed);
    }
  }
}

TEST(SameBuild, WhatIsNoIntroductionIsAnotherProgram) {
  EXPECT_THROW(
      require_same_build({introduction("0.1.0", "abc", "a"), std::string(kIntroductionBytes, '\1')}, 0),
      Error);
}

}  // namespace
}  // namespace octet::comm::same_build_test
