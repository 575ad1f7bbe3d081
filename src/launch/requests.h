// Signals that ask launch/mpirun for something.
#pragma once

#include <optional>
#include <vector>

namespace octet::launch {

/// Signals that wait for this process from the construction on, for good. Signals that this process ignored
/// when it was started (nohup, a job in the background) are ignored further.
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
  /// In a new process, between fork and exec: all signals have their default action; those that ask mpirun to
  /// end are blocked, so that they stay pending and this process can find them.
  void hand_over_to_mpirun() const;

 private:
  void read();

  int file_ = -1;
  bool hup_is_ignored_ = false;
  std::optional<int> stop_;
  std::vector<int> taken_;
};

}  // namespace octet::launch
