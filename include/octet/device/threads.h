// The threads of ops before there are any: whether the system gives them. OpenMP ends the program itself
// where it gets fewer than it was told, and says neither why nor what to do.
#pragma once

#include <pthread.h>

#include <atomic>
#include <optional>
#include <vector>

namespace octet::cpu {

/// What OMP_NUM_THREADS says, as OpenMP reads it. Nothing where it is not set, or says no number.
std::optional<int> told_threads();

/// Where so little memory may be taken (ulimit -v) that what threads set aside without using it would be much
/// of it, they set aside less: smaller stacks, and one heap for all. Before any thread is started.
void spare_limited_memory();

/// Threads that ops will have, started to see whether they can be: they do nothing and live as long as this,
/// so that ranks of a host can have theirs at once, which share a limit.
class ThreadTrial {
 public:
  /// `threads` with the calling one, which is there already; where the system counts them, also those that
  /// take their place. Throws Error with what can be done where one of them cannot be started.
  explicit ThreadTrial(int threads);
  /// Returns when the system counts the threads no more, so that others can take their place.
  ~ThreadTrial();
  ThreadTrial(const ThreadTrial&) = delete;
  ThreadTrial& operator=(const ThreadTrial&) = delete;

 private:
  void end() noexcept;

  int before_;  ///< threads of the process
  std::atomic<int> ended_ = 0;
  std::vector<pthread_t> threads_;
};

/// Starts the threads of OpenMP that ops of the calling thread will have, before memory takes their room.
void start_op_threads();

}  // namespace octet::cpu
