// What ends a run that does not move although no collective waits: a disk that does not answer, a GPU that
// does not, a lone rank in a file system that is gone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace octet::runtime {

/// A thread that watches over the phases of a run, each with a limit of its own. Where one lasts longer, it
/// says which and ends the process with ExitCode::hang: whoever is stuck in a system call cannot. The
/// launcher then ends the other ranks.
class Watchdog {
 public:
  /// `where` names this rank and its host. `end`, for tests, is called in place of ending the process.
  explicit Watchdog(std::string where, std::function<void(const std::string& message)> end = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on the run is in `phase` ("saving a checkpoint"), which may take `limit` seconds. Called again
  /// with the same phase, its time begins anew.
  void enter(const std::string& phase, double limit);
  /// Nothing is under way that has a limit.
  void rest();

 private:
  using Clock = std::chrono::steady_clock;
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
