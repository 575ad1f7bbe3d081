#include "octet/runtime/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "octet/files/folder_lock.h"
#include "support/temporary_folder.h"

namespace octet::runtime::signals_test {
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

// The time in which asking again means the same begins with the first request and with no other.
TEST(SignalsDeathTest, WhoAsksAgainAndAgainEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto asked = [](int count) {
    using namespace std::chrono_literals;
    Signals signals(1, true);
    signals.begin_steps();
    for (int i = 0; i < count; ++i) {
      if (i > 0) std::this_thread::sleep_for(600ms);
      std::raise(SIGTERM);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(asked(2), testing::ExitedWithCode(0), "stopping after this step");
  EXPECT_EXIT(asked(3), testing::ExitedWithCode(128 + SIGTERM), "stopped at once, as asked twice");
}

// A rank that ends because another rank failed has no request to stop.
TEST(SignalsDeathTest, BeforeTheFirstStepTheRequestIsToldAndTheEndOfTheJobIsNot) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto told = [](bool term_is_an_end, int signal) {
    const Signals signals(1, true, term_is_an_end);
    std::raise(signal);
  };
  EXPECT_EXIT(told(false, SIGTERM), testing::ExitedWithCode(76), "stopped before the first step, as asked");
  EXPECT_EXIT(told(true, SIGUSR2), testing::ExitedWithCode(76), "stopped before the first step, as asked");
  EXPECT_EXIT(told(true, SIGTERM), testing::ExitedWithCode(76), "^$");
}

// From the start of the program to the run's own handlers.
TEST(SignalsDeathTest, RequestsAtTheStartOfTheProgramEndItWith76) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto told = [](bool prints, bool term_is_an_end, int signal) {
    answer_stops_at_start(prints, term_is_an_end);
    std::raise(SIGUSR1);  // nothing to save yet
    std::raise(signal);
  };
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR2}) {
    EXPECT_EXIT(told(true, false, signal), testing::ExitedWithCode(76), "stopped before the first step");
    EXPECT_EXIT(told(false, false, signal), testing::ExitedWithCode(76), "^$");
  }
  EXPECT_EXIT(told(true, true, SIGTERM), testing::ExitedWithCode(76), "^$");
  const auto command = [] {
    answer_stops_of_a_command(true);
    std::raise(SIGUSR2);
  };
  EXPECT_EXIT(command(), testing::ExitedWithCode(76), "stopped, as asked");
}

// A run that is stopped at once leaves no lock that others would wait for.
TEST(Signals, WhatEndsTheProcessRemovesItsLockFile) {
  const auto left = [](bool begun, int requests, int expected) {
    const test::TemporaryFolder folder("signals_lock");
    const pid_t child = ::fork();
    if (child == 0) {
      const files::FolderLock lock(folder.path());
      ::close(STDERR_FILENO);
      Signals signals(0, true);
      if (begun) signals.begin_steps();
      for (int i = 0; i < requests; ++i) std::raise(SIGUSR2);
      std::_Exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), expected);
    return std::filesystem::exists(folder.path() + "/octet.lock");
  };
  EXPECT_FALSE(left(false, 1, 76)) << "before the first step";
  EXPECT_FALSE(left(true, 2, 128 + SIGUSR2)) << "asked twice";
  EXPECT_TRUE(left(true, 1, 0)) << "a process that dies without a word";
}

// A process group, its launcher and a batch system may send requests at the same instant: a handler may
// interrupt another handler.
TEST(Signals, RequestsOfTheSameInstantAreOne) {
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    Signals signals(60, false);
    signals.begin_steps();
    std::atomic<int> ready{0};
    const auto ask = [&](int signal) {
      ++ready;
      while (ready < 3) {
      }
      std::raise(signal);
    };
    std::thread one(ask, SIGTERM), other(ask, SIGUSR2), third(ask, SIGTERM);
    one.join();
    other.join();
    third.join();
    ASSERT_TRUE(signals.stop());
  }
}

#if defined(__x86_64__) && !defined(OCTET_SANITIZED)
// oneDNN's kernels of fp32 for AVX2 keep values further below their stack pointer than the system spares:
// runs that were asked to stop died of a damaged heap, one of eight.
TEST(Signals, HandlersWriteNothingBelowTheStackPointerOfWhatTheyInterrupt) {
  const Signals signals(60, false);
  std::raise(SIGUSR1);  // the first call is resolved, on this stack
  constexpr std::ptrdiff_t first = -8192, last = -1536;
  volatile char* const frame = static_cast<char*>(__builtin_frame_address(0));
  for (std::ptrdiff_t i = first; i < last; ++i) frame[i] = 'x';
  std::raise(SIGUSR1);
  std::ptrdiff_t changed = 0;
  for (std::ptrdiff_t i = first; i < last; ++i) changed += frame[i] != 'x';
  EXPECT_EQ(changed, 0);
}
#endif

}  // namespace
}  // namespace octet::runtime::signals_test
