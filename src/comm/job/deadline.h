// An action for a call that takes too long and cannot be interrupted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace octet::comm {

class Deadline {
 public:
  /// Calls `late` on a separate thread, unless this object is destroyed within `time`.
  Deadline(std::chrono::milliseconds time, std::function<void()> late);
  /// Waits for `late` if it is running.
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
