// A phase that lasts longer than its limit is named, once, and others are not.
#include "octet/runtime/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace octet::runtime::watchdog_test {
namespace {

using namespace std::chrono_literals;

TEST(Watchdog, NamesThePhaseThatDoesNotEnd) {
  std::atomic<int> calls = 0;
  std::string said;
  {
    Watchdog dog("rank 3 on host", [&](const std::string& message) { said = message, ++calls; });
    dog.enter("a step", 30);
    dog.enter("the saving of a checkpoint", 0.05);
    for (int i = 0; i < 200 && calls == 0; ++i) std::this_thread::sleep_for(10ms);
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_EQ(calls, 1);
  EXPECT_NE(said.find("the saving of a checkpoint does not finish"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 3 on host"), std::string::npos) << said;
}

TEST(Watchdog, PhasesThatEndInTimeAreNotTold) {
  std::atomic<int> calls = 0;
  {
    Watchdog dog("here", [&](const std::string&) { ++calls; });
    for (int i = 0; i < 10; ++i) {
      dog.enter("a step", 0.5);
      std::this_thread::sleep_for(100ms);
    }
    dog.enter("a phase without an end", 1e300);
    std::this_thread::sleep_for(20ms);
    dog.enter("a step", 0.1);
    dog.rest();
    std::this_thread::sleep_for(300ms);
  }
  EXPECT_EQ(calls, 0);
}

TEST(WatchdogDeathTest, EndsTheProcessWithTheCodeOfAHang) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        Watchdog dog("rank 0 on host");
        dog.enter("the reading of the data", 0.05);
        std::this_thread::sleep_for(20s);
      },
      testing::ExitedWithCode(75), "the reading of the data does not finish");
}

}  // namespace
}  // namespace octet::runtime::watchdog_test
