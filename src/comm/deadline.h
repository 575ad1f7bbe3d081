// What is to happen when something takes too long that nobody can interrupt.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace octet::comm {

class Deadline {
 public:
  /// Calls `late`, on a thread of its own, unless this object ends before that much time is over.
  Deadline(std::chrono::milliseconds time, std::function<void()> late);
  /// Waits for `late` where it is being called.
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool in_time_ = false;
  std::thread thread_;
};

}  // namespace octet::comm
