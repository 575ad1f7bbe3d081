#include "octet/device/threads.h"

#include <malloc.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <thread>

#include "cpu/machine.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/memory_room.h"
#include "octet/base/strings.h"
#include "octet/device/cpu.h"

namespace octet::cpu {

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
  // Leaves some threads to other processes, or their space to memory.
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
