// Signals that are requests to launch/mpirun.
#pragma once

#include <optional>
#include <vector>

namespace octet::launch {

/// Blocks the signals for the rest of the process and queues them. Signals that were ignored at the start of
/// the process (nohup, a job in the background) stay ignored.
class Requests {
 public:
  Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Returns the requests to stop or to save since the last call. SIGCHLD is not returned; it only makes
  /// file() readable.
  std::vector<int> take();
  /// Returns a file that is readable if a signal has arrived.
  int file() const { return file_; }
  /// Returns the first signal that requested a stop.
  const std::optional<int>& stop() const { return stop_; }
  /// Whether a stop was requested. Requests stay for the next take().
  bool stop_is_asked();
  /// Called between fork and exec: resets all signals to their default action. Blocks the signals that would
  /// end mpirun: they stay pending, and launch/mpirun finds them.
  void hand_over_to_mpirun() const;

 private:
  void read();

  int file_ = -1;
  bool hup_is_ignored_ = false;
  std::optional<int> stop_;
  std::vector<int> taken_;
};

}  // namespace octet::launch
