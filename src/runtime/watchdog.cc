#include "octet/runtime/watchdog.h"

#include <unistd.h>

#include <utility>

#include "octet/base/error.h"
#include "octet/base/log.h"

namespace octet::runtime {
namespace {

[[noreturn]] void end_process(const std::string& message) {
  log::error(message);
  // Destructors would wait for what does not come.
  ::_exit(static_cast<int>(ExitCode::hang));
}

}  // namespace

Watchdog::Watchdog(std::string where, std::function<void(const std::string&)> end)
    : where_(std::move(where)), end_(end ? std::move(end) : end_process), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::enter(const std::string& phase, double limit) {
  // Beyond a year there is none; the clock's own limits are far away, too.
  constexpr double kLongest = 3e7;
  {
    const std::scoped_lock lock(mutex_);
    phase_ = phase;
    limit_ = limit < kLongest ? limit : kLongest;
    deadline_ = Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(1000 * limit_));
  }
  changed_.notify_one();
}

void Watchdog::rest() {
  const std::scoped_lock lock(mutex_);
  phase_.clear();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (phase_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto deadline = deadline_;
    if (changed_.wait_until(lock, deadline) != std::cv_status::timeout || ends_ || phase_.empty()) continue;
    if (Clock::now() < deadline_) continue;
    const Error error({.what = phase_ + " does not finish",
                       .expected = "at most " + std::to_string(static_cast<std::int64_t>(limit_)) + " s",
                       .where = where_,
                       .fix = "look for a disk, a file system or a GPU that hangs (dmesg, nvidia-smi); raise "
                              "ddp_timeout if it is only slow",
                       .code = ExitCode::hang});
    phase_.clear();
    lock.unlock();
    end_(error.what());
    lock.lock();
  }
}

}  // namespace octet::runtime
