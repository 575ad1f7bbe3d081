// Threads of ops on the CPU: whether the system can start them, and how they wait for each other.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octet::cpu {

// How OpenMP's threads wait for each other at the end of an op. Spinning is fastest if the cores are not
// shared. If other programs use the cores, spinning threads use up their time slices and then wait for a
// core: short ops become up to a hundred times slower. This file therefore measures the time that threads
// wait for a core.

/// Decides by measurements whether cores are shared.
class SharedCores {
 public:
  /// Adds a measurement: in `passed` seconds the threads together waited `waited` seconds for a core. Returns
  /// the new answer if it changes.
  std::optional<bool> add(double waited, double passed);
  bool shared() const { return shared_; }

 private:
  bool shared_ = false;
  int in_a_row_ = 0;      ///< consecutive measurements with waiting
  double quiet_ = 0;      ///< seconds without waiting
  double patience_ = 10;  ///< seconds after which cores count as quiet
};

/// Returns the variable by which the user lets waiting threads spin; "" if no variable is set, nullptr if the
/// user lets them sleep. The arguments are OMP_WAIT_POLICY and GOMP_SPINCOUNT, or nullptr.
const char* choice_to_spin(const char* policy, const char* spin_count);

struct SharedCoresFacts {
  int percent = 0;  ///< of the time that threads waited for a core
  int threads = 1, cores = 1;
  bool sleeps = false;        ///< waiting threads now sleep
  const char* variable = "";  ///< as in choice_to_spin()
};
/// Returns the warning that cores are shared.
std::string shared_cores_text(const SharedCoresFacts& facts);

/// Makes waiting OpenMP threads sleep soon during its lifetime. GNU's library spins 300 times less if it has
/// more threads than there are cores. This object therefore starts idle threads.
class SleepingThreads {
 public:
  SleepingThreads();
  ~SleepingThreads();
  SleepingThreads(const SleepingThreads&) = delete;
  SleepingThreads& operator=(const SleepingThreads&) = delete;
  /// Returns false if the system refused to start the threads.
  bool active() const { return idle_ != nullptr; }

 private:
  struct Idle;
  std::unique_ptr<Idle> idle_;
};

/// Measures the op threads of the calling thread and chooses how they wait.
class WaitingThreads {
 public:
  WaitingThreads();
  ~WaitingThreads();
  WaitingThreads(const WaitingThreads&) = delete;
  WaitingThreads& operator=(const WaitingThreads&) = delete;

  /// Call often, between ops, from one thread. Measures at most five times a second. Logs that cores are
  /// shared. Does nothing for a single thread, or if the user lets waiting threads sleep. Leaves the waiting
  /// as it is if OMP_WAIT_POLICY or GOMP_SPINCOUNT is set.
  void look();

 private:
  void measure(std::chrono::steady_clock::time_point now);

  const char* spins_;  ///< as in choice_to_spin()
  std::vector<int> threads_;
  std::chrono::steady_clock::time_point last_{};
  double waited_ = 0;
  SharedCores cores_;
  bool told_ = false;
  std::unique_ptr<SleepingThreads> sleeping_;
};

// Checks whether the system can start the threads of ops. If OpenMP gets fewer threads than requested, it
// ends the program without a reason or a fix.

/// Returns the value of OMP_NUM_THREADS as OpenMP reads it. Empty if it is unset or not a number.
std::optional<int> told_threads();

/// Reduces the memory that threads set aside without using it, if a limit (ulimit -v) makes that a large
/// part: smaller stacks and one heap for all threads. Call it before any thread starts.
void spare_limited_memory();

/// Starts the number of threads that ops will need, to test whether the system allows it. The threads do
/// nothing and live as long as this object. All ranks of a host can thus hold their threads at the same time,
/// because they share a limit.
class ThreadTrial {
 public:
  /// `threads` includes the calling thread, which already exists. If the system limits threads, this object
  /// also starts the threads that replace them between ops. Throws Error with a fix if a thread cannot start.
  explicit ThreadTrial(int threads);
  /// Returns when the system no longer counts the threads, so that other threads can be started.
  ~ThreadTrial();
  ThreadTrial(const ThreadTrial&) = delete;
  ThreadTrial& operator=(const ThreadTrial&) = delete;

 private:
  void end() noexcept;

  int before_;  ///< threads of the process
  std::atomic<int> ended_ = 0;
  std::vector<pthread_t> threads_;
};

/// Starts the OpenMP threads of the calling thread's ops before memory reservations use up their space.
void start_op_threads();

}  // namespace octet::cpu
