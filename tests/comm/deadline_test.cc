#include "../src/comm/job/deadline.h"

#include <gtest/gtest.h>

#include <atomic>

namespace octet::comm::deadline_test {
namespace {

using std::chrono::milliseconds;

TEST(Deadline, WhatTakesTooLongIsToldAndWhatComesInTimeIsNot) {
  std::atomic<int> late = 0;
  {
    const Deadline deadline(milliseconds(20), [&] { ++late; });
    while (late == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(late, 1) << "once";
  {
    const Deadline deadline(std::chrono::minutes(10), [&] { ++late; });
  }
  EXPECT_EQ(late, 1) << "and nobody waits for it";
}

}  // namespace
}  // namespace octet::comm::deadline_test
