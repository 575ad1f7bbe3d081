#include "octet/device/shared_cores.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "cpu/machine.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/device/cpu.h"
#include "octet/device/threads.h"

namespace octet::cpu {
namespace {

/// Seconds that threads wait for a core, per second of wall time. From kShared on, cores count as shared.
constexpr double kShared = 0.2;
constexpr double kQuiet = 0.02;
constexpr double kMostPatience = 3600;
constexpr auto kPeriod = std::chrono::milliseconds(200);

/// Returns the seconds that a thread of this process was ready but had no core; 0 if the system does not
/// count them.
double waited_for_core(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
  double ran = 0, waited = 0;
  return file >> ran >> waited ? waited * 1e-9 : 0;
}

/// Returns the system's ids of the op threads of the calling thread.
std::vector<int> op_thread_numbers() {
  std::vector<int> numbers(static_cast<std::size_t>(std::max(1, op_threads())), 0);
#pragma omp parallel num_threads(static_cast <int>(numbers.size()))
  numbers[static_cast<std::size_t>(omp_get_thread_num())] = static_cast<int>(::gettid());
  std::erase(numbers, 0);
  return numbers;
}

}  // namespace

std::optional<bool> SharedCores::add(double waited, double passed) {
  const double share = waited / passed;
  in_a_row_ = share >= kShared ? in_a_row_ + 1 : 0;
  quiet_ = share < kQuiet ? quiet_ + passed : 0;
  if (!shared_ && in_a_row_ >= 2) return shared_ = true;
  if (!shared_ || quiet_ < patience_) return std::nullopt;
  // If cores become shared repeatedly, threads sleep for longer each time.
  patience_ = std::min(2 * patience_, kMostPatience);
  return shared_ = false;
}

struct SleepingThreads::Idle {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false, ends = false;
  std::thread thread;
};

SleepingThreads::SleepingThreads() {
  // Together with the op threads more than the number of cores.
  const int count = std::max(2, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)) - op_threads() + 2);
  try {
    if (threads_are_few()) return;
    // OpenMP would end the program if the threads could not be started.
    const ThreadTrial trial(count + 1);
  } catch (const Error&) {
    return;
  }
  idle_ = std::make_unique<Idle>();
  Idle* idle = idle_.get();
  try {
    idle->thread = std::thread([idle, count] {
      std::atomic<int> team = 0;
#pragma omp parallel num_threads(count)
      team.fetch_add(1, std::memory_order_relaxed);
      std::unique_lock lock(idle->mutex);
      idle->ready = true;
      idle->changed.notify_all();
      idle->changed.wait(lock, [idle] { return idle->ends; });
    });
  } catch (const std::exception&) {
    idle_.reset();
    return;
  }
  std::unique_lock lock(idle->mutex);
  idle->changed.wait(lock, [idle] { return idle->ready; });
}

SleepingThreads::~SleepingThreads() {
  if (idle_ == nullptr) return;
  {
    const std::lock_guard lock(idle_->mutex);
    idle_->ends = true;
  }
  idle_->changed.notify_all();
  idle_->thread.join();
}

const char* choice_to_spin(const char* policy, const char* spin_count) {
  // GNU's OpenMP reads the count before the policy.
  if (spin_count != nullptr) return trim(spin_count) == "0" ? nullptr : "GOMP_SPINCOUNT";
  if (policy != nullptr)
    return lower_case(std::string(trim(policy))) == "passive" ? nullptr : "OMP_WAIT_POLICY";
  return "";
}

std::string shared_cores_text(const SharedCoresFacts& facts) {
  std::string text = "the cores are shared with other processes: threads of this rank";
  if (facts.threads > facts.cores) {
    text = "the cores are shared: this rank has " + std::to_string(facts.threads) + " threads for " +
           std::to_string(facts.cores) + (facts.cores == 1 ? " core" : " cores") + ", and they";
  }
  text += " waited for a core " + std::to_string(facts.percent) + " % of the time; ";
  if (facts.sleeps) return text + "threads that wait for each other now sleep instead of spinning";
  if (*facts.variable == '\0') return text + "set OMP_WAIT_POLICY=passive, so that waiting threads sleep";
  return text + facts.variable + " lets waiting threads spin: unset it, so that they sleep";
}

WaitingThreads::WaitingThreads()
    : spins_(
          choice_to_spin(environment_variable("OMP_WAIT_POLICY"), environment_variable("GOMP_SPINCOUNT"))) {}

WaitingThreads::~WaitingThreads() = default;

void WaitingThreads::look() {
  if (spins_ == nullptr || op_threads() < 2) return;
  const auto now = std::chrono::steady_clock::now();
  if (!threads_.empty() && now - last_ < kPeriod) return;
  measure(now);
}

void WaitingThreads::measure(std::chrono::steady_clock::time_point now) {
  const bool first = threads_.empty();
  if (first) threads_ = op_thread_numbers();
  double waited = 0;
  for (const int thread : threads_) waited += waited_for_core(thread);
  const double more = std::max(0.0, waited - waited_);
  const double passed = std::chrono::duration<double>(now - last_).count();
  waited_ = waited, last_ = now;
  if (first) return;
  const std::optional<bool> shared = cores_.add(more, passed);
  if (!shared) return;
  if (!*shared) return sleeping_.reset();
  const bool chosen = *spins_ != '\0';
  if (!chosen) sleeping_ = std::make_unique<SleepingThreads>();
  if (std::exchange(told_, true)) return;
  const auto threads = static_cast<double>(threads_.size());
  log::warn(shared_cores_text({.percent = static_cast<int>(100 * more / (passed * threads) + 0.5),
                               .threads = static_cast<int>(threads_.size()),
                               .cores = allowed_cores(),
                               .sleeps = !chosen && sleeping_->active(),
                               .variable = spins_}));
}

}  // namespace octet::cpu
