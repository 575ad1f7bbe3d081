// Ends a run that hangs outside of collectives: in a disk, in a GPU, or as a single rank in a lost file
// system.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "octet/base/timing.h"

namespace octet::runtime {

/// A thread that watches the phases of a run, each with a time limit. If a phase exceeds its limit, the
/// thread names it and ends the process with ExitCode::hang, because a thread stuck in a system call cannot.
/// The launcher then ends the other ranks.
class Watchdog {
 public:
  /// `where` names this rank and its host. `end`, for tests, is called instead of ending the process.
  explicit Watchdog(std::string where, std::function<void(const std::string& message)> end = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Enters `phase` ("saving a checkpoint") with a limit of `limit` seconds. Entering the current phase again
  /// restarts its time.
  void enter(const std::string& phase, double limit);
  /// Leaves the phase; no limit applies.
  void rest();

 private:
  void watch();

  std::string where_;
  std::function<void(const std::string&)> end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string phase_;  ///< empty: at rest
  double limit_ = 0;
  Clock::time_point deadline_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace octet::runtime
