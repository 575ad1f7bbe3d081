#include "octet/supervise/policy.h"

#include <gtest/gtest.h>

namespace octet::supervise::goodput_test {
namespace {

TEST(Goodput, CountsEachStepOnce) {
  Goodput goodput;
  goodput.begin(0);
  goodput.reach(10, 20);
  EXPECT_DOUBLE_EQ(goodput.seconds(), 20);
  goodput.begin(8);  // two of ten were lost
  EXPECT_DOUBLE_EQ(goodput.seconds(), 16);
  goodput.reach(9, 1);
  goodput.reach(12, 4);
  EXPECT_DOUBLE_EQ(goodput.seconds(), 20);
  EXPECT_DOUBLE_EQ(goodput.share(40), 0.5);
}

TEST(Goodput, GoesBackBehindSeveralStarts) {
  Goodput goodput;
  for (const int start : {0, 1, 2}) {
    goodput.begin(10 * start);
    goodput.reach(10 * start + 10, 10);
  }
  EXPECT_DOUBLE_EQ(goodput.seconds(), 30);
  goodput.begin(5);  // the newer checkpoints were not valid
  EXPECT_DOUBLE_EQ(goodput.seconds(), 5);
  goodput.begin(0);
  EXPECT_DOUBLE_EQ(goodput.seconds(), 0);
}

TEST(Goodput, AStartThatDidNothingChangesNothing) {
  Goodput goodput;
  goodput.begin(0);
  goodput.reach(4, 8);
  goodput.begin(4);
  goodput.begin(4);
  EXPECT_DOUBLE_EQ(goodput.seconds(), 8);
  EXPECT_DOUBLE_EQ(Goodput().share(0), 0);
  EXPECT_DOUBLE_EQ(Goodput().share(5), 0);
}

TEST(Goodput, ARunThatWasGoneOnFromElsewhereCountsItsOwnSteps) {
  Goodput goodput;
  goodput.begin(1000);
  goodput.reach(1010, 5);
  EXPECT_DOUBLE_EQ(goodput.seconds(), 5);
  goodput.begin(1004);  // four of its ten steps stay
  EXPECT_DOUBLE_EQ(goodput.seconds(), 2);
  goodput.begin(1008);  // later than its last step: nothing changes
  EXPECT_DOUBLE_EQ(goodput.seconds(), 2);
}

}  // namespace
}  // namespace octet::supervise::goodput_test
