// The count of returns to a checkpoint.
#include "../src/train/faults/step_guard.h"

#include <gtest/gtest.h>

namespace octet::train::rollbacks_test {
namespace {

TEST(Rollbacks, AreRequestedOnce) {
  Rollbacks rollbacks;
  EXPECT_FALSE(rollbacks.requested());
  rollbacks.request(Back::other_data);
  EXPECT_TRUE(rollbacks.requested());
  EXPECT_EQ(rollbacks.take(), Back::other_data);
  EXPECT_FALSE(rollbacks.requested());
  EXPECT_EQ(rollbacks.take(), Back::no);
}

TEST(Rollbacks, AreTooManyAfterThreeWithoutANewCheckpoint) {
  Rollbacks rollbacks;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(rollbacks.begin(2)) << i;
  EXPECT_FALSE(rollbacks.begin(3)) << "a new checkpoint";
  EXPECT_FALSE(rollbacks.begin(3));
  EXPECT_FALSE(rollbacks.begin(3));
  EXPECT_TRUE(rollbacks.begin(3));
  EXPECT_EQ(rollbacks.count(), 7);
}

TEST(Rollbacks, KeepTheLargerCountOfACheckpoint) {
  Rollbacks rollbacks;
  rollbacks.restore(4);
  EXPECT_EQ(rollbacks.count(), 4);
  EXPECT_FALSE(rollbacks.begin(0));
  rollbacks.restore(4);
  EXPECT_EQ(rollbacks.count(), 5) << "the checkpoint is older than the rollback";
}

}  // namespace
}  // namespace octet::train::rollbacks_test
