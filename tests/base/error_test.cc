#include "octet/base/error.h"

#include <gtest/gtest.h>

#include <new>
#include <system_error>

namespace octet::error_test {
namespace {

TEST(ProblemOf, AnErrorIsItsOwn) {
  const auto problem = problem_of(Error(Problem{.what = "no", .fix = "yes", .code = ExitCode::storage}));
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->what, "no");
  EXPECT_EQ(problem->fix, "yes");
  EXPECT_EQ(problem->code, ExitCode::storage);
}

TEST(ProblemOf, MemoryAndThreadsThatAreNotToBeHadComeWithAMend) {
  const auto memory = problem_of(std::bad_alloc());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->what, "out of memory");
  EXPECT_NE(memory->fix.find("smaller model or batch"), std::string::npos);
  const auto refused = problem_of(std::system_error(std::make_error_code(std::errc::not_enough_memory)));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->fix, memory->fix);
  EXPECT_EQ(refused->code, memory->code);
  const auto threads =
      problem_of(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  ASSERT_TRUE(threads);
  EXPECT_NE(threads->what.find("threads"), std::string::npos);
  EXPECT_NE(threads->fix.find("ulimit -u"), std::string::npos);
  EXPECT_EQ(threads->code, ExitCode::failure);
}

TEST(ProblemOf, MistakesOfTheProgramAreNone) {
  EXPECT_FALSE(problem_of(std::logic_error("internal error: x")));
  EXPECT_FALSE(problem_of(std::system_error(std::make_error_code(std::errc::invalid_argument))));
}

}  // namespace
}  // namespace octet::error_test
