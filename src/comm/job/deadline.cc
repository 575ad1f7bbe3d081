#include "job/deadline.h"

#include <utility>

namespace octet::comm {

Deadline::Deadline(std::chrono::milliseconds time, std::function<void()> late)
    : thread_([this, time, act = std::move(late)] {
        std::unique_lock lock(mutex_);
        if (ended_.wait_for(lock, time, [this] { return in_time_; })) return;
        lock.unlock();
        act();
      }) {}

Deadline::~Deadline() {
  {
    const std::scoped_lock lock(mutex_);
    in_time_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

}  // namespace octet::comm
