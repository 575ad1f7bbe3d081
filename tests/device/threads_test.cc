#include "octet/device/op_threads.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"
#include "support/limited_memory.h"

namespace octet::threads_test {
namespace {

/// Sets OpenMP's variables for one test.
class OpenMpVariables : public testing::Test {
 protected:
  OpenMpVariables() {
    for (const char* name : {"OMP_NUM_THREADS", "OMP_STACKSIZE"}) ::unsetenv(name);
  }
  ~OpenMpVariables() override {
    for (const char* name : {"OMP_NUM_THREADS", "OMP_STACKSIZE"}) ::unsetenv(name);
  }
  static std::optional<int> told(const char* text) {
    ::setenv("OMP_NUM_THREADS", text, 1);
    return cpu::told_threads();
  }
};

int threads_now() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) return std::stoi(line.substr(8));
  }
  return 0;
}

// Waits at most two seconds until `wanted` holds for the number of threads, and returns the number. The
// kernel counts a joined thread for a moment longer.
template <typename Wanted>
int threads_when(const Wanted& wanted) {
  constexpr std::chrono::milliseconds kMoment(5);
  constexpr int kMoments = 400;
  int threads = threads_now();
  for (int moment = 0; moment < kMoments && !wanted(threads); ++moment) {
    std::this_thread::sleep_for(kMoment);
    threads = threads_now();
  }
  return threads;
}

// Returns the number of threads after the kernel has stopped counting joined threads.
int settled_threads() {
  constexpr std::chrono::milliseconds kSettles(30);
  int before = 0;
  return threads_when([&](int now) {
    if (std::exchange(before, now) == now) return true;
    std::this_thread::sleep_for(kSettles);
    return false;
  });
}

TEST_F(OpenMpVariables, SayHowManyThreadsARankHas) {
  EXPECT_EQ(cpu::told_threads(), std::nullopt);
  EXPECT_EQ(told("11"), 11);
  EXPECT_EQ(told(" 4, 2"), 4) << "regions within regions are none of ours";
  for (const char* none : {"", "0", "-1", "many", "3x", "99999999999999"})
    EXPECT_EQ(told(none), std::nullopt);
}

TEST_F(OpenMpVariables, StandBeforeTheCoresThatThereAre) {
  const int more = cpu::allowed_cores() + 3;
  ::setenv("OMP_NUM_THREADS", std::to_string(more).c_str(), 1);
  EXPECT_EQ(cpu::claim_cores(0, 1), more);
  EXPECT_EQ(cpu::claim_cores(1, 2), more) << "each rank has so many";
  EXPECT_EQ(cpu::claim_cores(0, 1, {.numa_node = 0, .ranks = 1}), more);
#if !defined(__SANITIZE_THREAD__)
  std::thread([more] { EXPECT_EQ(cpu::op_threads(), more); }).join();
#endif
}

TEST_F(OpenMpVariables, ThreadsOfATrialAreThereAtOnceAndGoneAfterIt) {
  const int before = settled_threads();
  const auto is_as_before = [before](int threads) { return threads == before; };
  {
    const cpu::ThreadTrial alone(1);
    EXPECT_EQ(threads_when(is_as_before), before);
    const cpu::ThreadTrial trial(9);
    const int others = threads_now() - before;
    EXPECT_TRUE(others == 8 || others == 16) << others << ": 16 where the system counts threads";
  }
  EXPECT_EQ(threads_when(is_as_before), before);
}

#ifdef OCTET_TEST_LIMITED_MEMORY
TEST_F(OpenMpVariables, ThreadsThatCannotBeStartedAreAnErrorWithWhatToDo) {
  const int before = settled_threads();
  ::setenv("OMP_NUM_THREADS", "200", 1);
  const test::LimitedMemory limit(std::size_t{100} << 20);
  try {
    const cpu::ThreadTrial trial(200);
    ADD_FAILURE() << "200 stacks have no room";
  } catch (const Error& e) {
    const std::string text = e.what();
    for (const char* piece : {"200 threads, as OMP_NUM_THREADS says", "of stack each", ", then: ",
                              "ulimit -v ", "to do:    compute with fewer threads (OMP_NUM_THREADS="})
      EXPECT_NE(text.find(piece), std::string::npos) << piece << "\n" << text;
    EXPECT_EQ(e.code(), ExitCode::usage);
  }
  EXPECT_EQ(threads_when([before](int threads) { return threads == before; }), before);
  ::setenv("OMP_STACKSIZE", "64", 1);  // kilobytes
  EXPECT_NO_THROW(cpu::ThreadTrial(200));
  ::setenv("OMP_STACKSIZE", "8 M", 1);
  EXPECT_THROW(cpu::ThreadTrial(200), Error);
}
#endif

}  // namespace
}  // namespace octet::threads_test
