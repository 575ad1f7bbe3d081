// How OpenMP's threads wait: the decisions from measurements, and their effect.
#include "octet/device/op_threads.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

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

TEST(SharedCores, TheWarningNamesTheCauseAndWhatHelps) {
  struct Row {
    const char *policy, *spin_count;
    int threads, cores;
    bool sleeps;
    const char *says, *ends;
  };
  const std::string other =
      "shared with other processes: threads of this rank waited for a core 40 % of the time; ";
  const Row rows[] = {
      {nullptr, nullptr, 2, 2, true, other.c_str(), "now sleep instead of spinning"},
      {nullptr, nullptr, 2, 2, false, other.c_str(),
       "set OMP_WAIT_POLICY=passive, so that waiting threads sleep"},
      {"active", nullptr, 2, 2, false, other.c_str(), "OMP_WAIT_POLICY lets waiting threads spin: unset it"},
      {"nonsense", nullptr, 2, 2, false, other.c_str(), "OMP_WAIT_POLICY lets"},
      {nullptr, "infinite", 2, 2, false, other.c_str(), "GOMP_SPINCOUNT lets waiting threads spin"},
      {"passive", "1000", 2, 2, false, other.c_str(), "GOMP_SPINCOUNT lets"},
      {nullptr, nullptr, 64, 2, true, "shared: this rank has 64 threads for 2 cores, and they waited for",
       "now sleep"},
      {"active", nullptr, 2, 1, false, "shared: this rank has 2 threads for 1 core, and",
       "OMP_WAIT_POLICY lets"},
      {"passive", nullptr, 2, 2, false, nullptr, nullptr},
      {" PASSIVE ", nullptr, 2, 2, false, nullptr, nullptr},
      {nullptr, "0", 2, 2, false, nullptr, nullptr},
      {"active", "0", 2, 2, false, nullptr, nullptr},
  };
  for (const Row& row : rows) {
    const char* spins = choice_to_spin(row.policy, row.spin_count);
    ASSERT_EQ(spins == nullptr, row.says == nullptr);
    if (spins == nullptr) continue;
    EXPECT_EQ(*spins == '\0', row.policy == nullptr && row.spin_count == nullptr);
    const std::string text = shared_cores_text(
        {.percent = 40, .threads = row.threads, .cores = row.cores, .sleeps = row.sleeps, .variable = spins});
    EXPECT_TRUE(text.starts_with("the cores are shared")) << text;
    EXPECT_NE(text.find(row.says), std::string::npos) << text;
    EXPECT_NE(text.find(row.ends), std::string::npos) << text;
  }
}

TEST(SharedCores, MoreThreadsThanCoresAreToldBeforeTheFirstStep) {
  struct Row {
    Crowd crowd;
    const char* says;
  };
  const Row rows[] = {
      {{.ranks = 1, .threads = 2, .cores = 2}, ""},
      {{.ranks = 2, .threads = 1, .cores = 2}, ""},
      {{.ranks = 2, .threads = 1, .cores = 3}, ""},
      {{.ranks = 1, .threads = 2, .cores = 2, .told = true}, ""},
      {{.ranks = 1, .threads = 1, .cores = 8, .told = true}, ""},
      {{.ranks = 1, .threads = 64, .cores = 2, .told = true},
       "OMP_NUM_THREADS gives 64 threads to each of 1 rank, and this host has 2 cores for them: threads wait "
       "for a core; to do: unset OMP_NUM_THREADS, or set it to 2"},
      {{.ranks = 2, .threads = 2, .cores = 2, .told = true}, "or set it to 1"},
      {{.ranks = 4, .threads = 1, .cores = 2},
       "4 ranks compute on 2 cores of this host, and wait for each other; to do: start at most 2 ranks on"},
      {{.ranks = 2, .threads = 1, .cores = 1, .told = true}, "2 ranks compute on 1 core of this host"},
      {{.ranks = 1, .threads = 2, .cores = 2, .bound = true}, ""},
      {{.ranks = 2, .threads = 1, .cores = 2, .bound = true}, ""},
      {{.ranks = 2, .threads = 4, .cores = 8, .bound = true},
       "binds the threads of all 2 ranks of this host to"},
  };
  for (const Row& row : rows) {
    const std::string text = crowd_text(row.crowd);
    EXPECT_EQ(text.empty(), *row.says == '\0') << text;
    EXPECT_NE(text.find(row.says), std::string::npos) << text;
  }
}

// Prints how many threads OpenMP's variables leave to a rank and how many cores to its first thread.
TEST(BoundThreads, DISABLED_InTheirOwnProcess) {
  const char* wanted = std::getenv("WANTED_THREADS");
  ASSERT_NE(wanted, nullptr);
  const int threads = claim_cores(0, 1);
  EXPECT_EQ(threads, std::stoi(wanted));
  set_op_threads(threads);
  EXPECT_EQ(op_threads(), threads);
  std::thread([threads] {
    EXPECT_GE(allowed_cores(), threads) << "a thread has the cores of its first";
  }).join();
}

TEST(BoundThreads, HaveAllCoresOfTheirPlaces) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "one thread only";
#endif
  const std::string all = std::to_string(allowed_cores());
  const std::pair<std::string, std::string> rows[] = {
      {"", all},
      {"OMP_PROC_BIND=true", all},
      {"OMP_PROC_BIND=close OMP_PLACES=threads", all},
      {"OMP_PROC_BIND=spread OMP_NUM_THREADS=2", "2"},
      {"OMP_PROC_BIND=false", all},
      {"OMP_PLACES='{0}'", "1"},
      {"OMP_THREAD_LIMIT=1", "1"},
      {"OMP_THREAD_LIMIT=2 OMP_NUM_THREADS=7", "2"},
  };
  for (const auto& [variables, threads] : rows) {
    const std::string command = "env -u OMP_NUM_THREADS " + variables + " WANTED_THREADS=" + threads +
                                " /proc/$PPID/exe --gtest_also_run_disabled_tests "
                                "--gtest_filter='BoundThreads.DISABLED_*' > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << variables;
  }
}

// Starts a process in a new control group of the system with a quota of one core. The test is skipped if the
// user may not make such a group.
TEST(Quota, OfAControlGroupLimitsTheThreadsOfARank) {
  const std::string name = "/octet_test_" + std::to_string(::getpid());
  const std::pair<std::string, std::string> kinds[] = {
      {"/sys/fs/cgroup/cpu" + name,
       "echo 100000 > $G/cpu.cfs_period_us && echo 100000 > $G/cpu.cfs_quota_us"},
      {"/sys/fs/cgroup" + name, "echo 100000 100000 > $G/cpu.max"},
  };
  for (const auto& [group, limit] : kinds) {
    const std::string set = "G=" + group + "; mkdir $G && " + limit + " && echo $$ > $G/cgroup.procs";
    const std::string run = "(" + set + ") 2> /dev/null";
    const bool allowed = std::system(run.c_str()) == 0;
    int code = 0;
    if (allowed) {
      const std::string child = "P=$PPID; echo $$ > " + group +
                                "/cgroup.procs; exec env -u OMP_NUM_THREADS WANTED_THREADS=1 /proc/$P/exe "
                                "--gtest_also_run_disabled_tests "
                                "--gtest_filter='BoundThreads.DISABLED_*' > /dev/null";
      code = std::system(child.c_str());
    }
    ::rmdir(group.c_str());
    if (!allowed) continue;
    EXPECT_EQ(code, 0) << group;
    return;
  }
  GTEST_SKIP() << "no control group with a CPU quota can be made here";
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
