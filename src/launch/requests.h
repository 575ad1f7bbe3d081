// Signals that ask launch/mpirun for something.
#pragma once

#include <optional>
#include <vector>

namespace octet::launch {

/// From its construction on, signals wait for this process, for good. Signals that this process ignored when
/// it was started (nohup, a job in the background) stay ignored.
class Requests {
 public:
  Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Takes the signals that came since the last call. Returns those that ask to stop or to save; SIGCHLD only
  /// wakes.
  std::vector<int> take();
  /// Readable when a signal has come.
  int file() const { return file_; }
  /// The first signal that asked to stop.
  const std::optional<int>& stop() const { return stop_; }
  /// Whether a stop was asked for. Requests stay for the next take().
  bool stop_is_asked();
  /// Called between fork and exec: all signals get their default action. Signals that would end mpirun are
  /// blocked: they stay pending, and launch/mpirun finds them.
  void hand_over_to_mpirun() const;

 private:
  void read();

  int file_ = -1;
  bool hup_is_ignored_ = false;
  std::optional<int> stop_;
  std::vector<int> taken_;
};

}  // namespace octet::launch
