#include "octet/base/process.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace octet::own_end_test {
namespace {

TEST(EndsItself, ALibraryThatEndsTheProgramIsFollowedByWhatToDo) {
  EXPECT_EXIT(
      {
        const EndsItself here;
        std::exit(1);
      },
      testing::ExitedWithCode(1),
      "error: a library has ended the program\n.*\n.*to do: .*threads \\(OMP_NUM_THREADS=1\\) ");
}

TEST(EndsItself, AnEndOfItsOwnSaysNoMore) {
  EXPECT_EXIT(
      {
        { const EndsItself here; }
        std::exit(3);
      },
      testing::ExitedWithCode(3), "^$");
  EXPECT_EXIT(
      {
        const EndsItself here;
        EndsItself::allow();
        std::exit(3);
      },
      testing::ExitedWithCode(3), "^$");
}

}  // namespace
}  // namespace octet::own_end_test
