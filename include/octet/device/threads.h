// Checks whether the system can start the threads of ops. If OpenMP gets fewer threads than requested, it
// ends the program without a reason or a fix.
#pragma once

#include <pthread.h>

#include <atomic>
#include <optional>
#include <vector>

namespace octet::cpu {

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
