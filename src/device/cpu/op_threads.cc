#include "octet/device/op_threads.h"

#include <malloc.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "cpu/machine.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/device/cpu.h"

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
  // These threads and the op threads together outnumber the cores.
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

namespace {

/// Returns the number of threads of this process; 0 if the system does not report it.
int threads_now() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) return std::atoi(line.c_str() + std::strlen("Threads:"));
  }
  return 0;
}

/// Returns OMP_STACKSIZE in bytes, as OpenMP reads it: kilobytes unless a letter gives another unit. 0: not
/// set.
std::size_t told_stack() {
  const char* told = environment_variable("OMP_STACKSIZE");
  if (told == nullptr) return 0;
  const std::string_view text = trim(told);
  std::size_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = trim(std::string_view(rest, text.data() + text.size()));
  if (error != std::errc() || unit.size() > 1) return 0;
  const std::size_t at = std::string_view("BbKkMmGg").find(unit.empty() ? 'K' : unit[0]);
  if (at == std::string_view::npos) return 0;
  const std::size_t shift = 10 * (at / 2);
  return number <= std::numeric_limits<std::size_t>::max() >> shift ? number << shift : 0;
}

/// Attributes of a thread with the given stack size. An invalid size leaves the system's default, as in
/// OpenMP.
class Attributes {
 public:
  explicit Attributes(std::size_t stack) {
    pthread_attr_init(&attributes_);
    if (stack > 0) pthread_attr_setstacksize(&attributes_, stack);
  }
  ~Attributes() { pthread_attr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  const pthread_attr_t* get() const { return &attributes_; }
  std::size_t stack() const {
    std::size_t bytes = 0;
    pthread_attr_getstacksize(&attributes_, &bytes);
    return bytes;
  }

 private:
  pthread_attr_t attributes_;
};

void* wait_for(void* ended) {
  static_cast<std::atomic<int>*>(ended)->wait(0);
  return nullptr;
}

}  // namespace

std::optional<int> told_threads() {
  const char* told = environment_variable("OMP_NUM_THREADS");
  if (told == nullptr) return std::nullopt;
  // A list has one number per level of nested regions. This program uses one level.
  const std::string_view whole(told), text = trim(whole.substr(0, whole.find(',')));
  int number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size() || number < 1) return std::nullopt;
  return number;
}

void spare_limited_memory() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
#if defined(__GLIBC__)
  constexpr std::size_t heap = std::size_t{64} << 20, stack = std::size_t{2} << 20;
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  std::size_t now = 0;
  pthread_attr_getstacksize(&attributes, &now);
  const auto threads = static_cast<std::size_t>(
      std::max(1L, told_threads() ? static_cast<long>(*told_threads()) : sysconf(_SC_NPROCESSORS_ONLN)));
  if (limit.rlim_cur / 4 < threads * (heap + now)) {
    mallopt(M_ARENA_MAX, 1);
    // OpenMP ends threads and starts others between ops: the system caches 40 MiB of stacks for them.
    if (now > stack && pthread_attr_setstacksize(&attributes, stack) == 0)
      pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
#endif
}

ThreadTrial::ThreadTrial(int threads) : before_(threads_now()) {
  const int more = threads - 1;
  if (more < 1) return;
  // OpenMP ends threads and starts others between ops. For a moment the system counts both.
  const int rounds = threads_are_few() ? 2 : 1;
  const Attributes whole(told_stack()), small(std::size_t{128} << 10);
  threads_.reserve(static_cast<std::size_t>(rounds * more));
  int error = 0;
  for (int i = 0; i < rounds * more && error == 0; ++i) {
    pthread_t thread{};
    error = pthread_create(&thread, (i < more ? whole : small).get(), wait_for, &ended_);
    if (error == 0) threads_.push_back(thread);
  }
  if (error == 0) return;
  const int started = static_cast<int>(threads_.size());
  const std::string limits = thread_limits();  // read while these threads exist
  end();
  // The advised number leaves threads and memory to other processes.
  const int fewer = 1 + started / (1 + rounds);
  throw Error({.what = "the system does not let this process start its threads",
               .expected = std::to_string(threads) + " threads, " +
                           (told_threads() ? "as OMP_NUM_THREADS says" : "one for each core of this rank") +
                           ", with " + human_bytes(static_cast<double>(whole.stack())) + " of stack each" +
                           (rounds > 1 ? ", and as many that replace them" : ""),
               .found = std::to_string(1 + started) + ", then: " + std::strerror(error) +
                        (limits.empty() ? "" : "; limits: " + limits),
               .fix = "compute with fewer threads (OMP_NUM_THREADS=" + std::to_string(fewer) +
                      "), use fewer ranks on this node, or raise the limit: of processes and threads (ulimit "
                      "-u), of memory (ulimit -v), or of the container or job (pids.max)",
               .code = code_without_memory()});
}

ThreadTrial::~ThreadTrial() {
  end();
}

void ThreadTrial::end() noexcept {
  if (threads_.empty()) return;
  ended_.store(1);
  ended_.notify_all();
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
  threads_.clear();
  // The system counts a joined thread for a moment longer. Other threads of this process may have started in
  // the meantime.
  const auto most = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  while (threads_now() > before_ && std::chrono::steady_clock::now() < most)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void start_op_threads() {
  const int threads = op_threads();
  if (threads < 2) return;
  std::atomic<int> team = 0;
#pragma omp parallel num_threads(threads)
  team.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace octet::cpu
