// How OpenMP's threads wait: the decisions from measurements, and their effect.
#include "octet/device/shared_cores.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "octet/device/cpu.h"

namespace octet::cpu::shared_cores_test {
namespace {

TEST(SharedCores, TwoMeasurementsInARowDecide) {
  SharedCores cores;
  EXPECT_EQ(cores.add(0.01, 0.2), std::nullopt);
  EXPECT_EQ(cores.add(0.1, 0.2), std::nullopt) << "one alone may be chance";
  EXPECT_EQ(cores.add(0.01, 0.2), std::nullopt);
  EXPECT_EQ(cores.add(0.1, 0.2), std::nullopt);
  EXPECT_EQ(cores.add(0.05, 0.2), true);
  EXPECT_EQ(cores.add(0.1, 0.2), std::nullopt) << "known already";
}

TEST(SharedCores, AfterTenQuietSecondsTheyAreNotAndThenLater) {
  SharedCores cores;
  const auto becomes_shared = [&] {
    cores.add(1, 1);
    return cores.add(1, 1);
  };
  const auto quiet_seconds = [&] {
    int seconds = 1;
    while (cores.add(0, 1) != false && seconds < 100) ++seconds;
    return seconds;
  };
  EXPECT_EQ(becomes_shared(), true);
  EXPECT_EQ(quiet_seconds(), 10);
  EXPECT_FALSE(cores.shared());
  EXPECT_EQ(becomes_shared(), true);
  cores.add(0, 15);
  cores.add(0.1, 1);
  EXPECT_TRUE(cores.shared()) << "not quiet for long enough";
  EXPECT_EQ(quiet_seconds(), 20);
}

/// Returns the CPU seconds that a thread uses while it waits 50 ms for another thread at the end of a region.
double spun() {
  double took = 0;
#pragma omp parallel num_threads(2)
  {
    timespec before{}, after{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    if (omp_get_thread_num() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
#pragma omp barrier
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    if (omp_get_thread_num() == 1)
      took = static_cast<double>(after.tv_sec - before.tv_sec) +
             1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  }
  return took;
}

// Runs in a process with OpenMP's default wait policy.
TEST(WaitingThreads, DISABLED_InTheirOwnProcess) {
  set_op_threads(2);
  spun();
  double before = 0, during = 1, after = 0;
  for (int i = 0; i < 3; ++i) before = std::max(before, spun());
  {
    const SleepingThreads sleeping;
    ASSERT_TRUE(sleeping.active());
    for (int i = 0; i < 3; ++i) during = std::min(during, spun());
  }
  for (int i = 0; i < 3; ++i) after = std::max(after, spun());
  EXPECT_LT(during, before / 4) << before;
  EXPECT_GT(after, during * 4) << "spinning again";
}

TEST(WaitingThreads, SleepSoonWhileIdleOnesAreThere) {
#if defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_EQ(
      std::system("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT -u OMP_NUM_THREADS /proc/$PPID/exe "
                  "--gtest_also_run_disabled_tests --gtest_filter='WaitingThreads.DISABLED_*' > /dev/null"),
      0);
#else
  GTEST_SKIP() << "the library of OpenMP is not GNU's, or slowed down by a sanitizer";
#endif
}

}  // namespace
}  // namespace octet::cpu::shared_cores_test
