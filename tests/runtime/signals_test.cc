#include "octet/runtime/signals.h"

#include <gtest/gtest.h>

#include <csignal>

namespace octet::runtime {
namespace {

bool by_default(int signal) {
  struct sigaction now {};
  EXPECT_EQ(::sigaction(signal, nullptr, &now), 0);
  return now.sa_handler == SIG_DFL;
}

TEST(Signals, ASecondRequestThatFindsARunAtItsEndDoesNotEndTheProcess) {
  {
    Signals signals(60, false);
    signals.begin_steps();
    EXPECT_FALSE(signals.stop());
    std::raise(SIGTERM);
    EXPECT_TRUE(signals.stop());
  }
  std::raise(SIGTERM);  // within the time in which asking again means the same
  Signals next(60, false);
  EXPECT_FALSE(next.stop()) << "the next run was not asked";
}

TEST(Signals, ARunThatNobodyStoppedLeavesSignalsAsTheyWere) {
  {
    Signals signals(60, false);
    EXPECT_FALSE(by_default(SIGTERM));
  }
  EXPECT_TRUE(by_default(SIGTERM));
  EXPECT_TRUE(by_default(SIGUSR1));
}

}  // namespace
}  // namespace octet::runtime
