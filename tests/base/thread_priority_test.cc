// Threads that others are preferred to.
#include "octet/base/process.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <thread>

#include "support/threads.h"

namespace octet::thread_priority_test {
namespace {

TEST(ThreadPriority, IsThatOfTheThreadAndOfThoseItStarts) {
  const int before = ::getpriority(PRIO_PROCESS, 0);
  int own = -1, started = -1;
  std::thread([&] {
    run_thread_behind();
    own = ::getpriority(PRIO_PROCESS, 0);
    EXPECT_TRUE(test::a_thread_runs_behind());
    std::thread([&] { started = ::getpriority(PRIO_PROCESS, 0); }).join();
    run_thread_behind();
    EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), own) << "once is enough";
  }).join();
  EXPECT_EQ(own, std::max(before, kBehindNiceness));
  EXPECT_EQ(started, own);
  EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), before) << "the thread that goes on computing";
}

}  // namespace
}  // namespace octet::thread_priority_test
