// The processes of one start: a launcher and whatever it starts.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "traces.h"

namespace octet::supervise {

/// Makes this process the parent of orphans below it, so that whatever a launcher leaves behind is found.
void adopt_orphans();
/// Numbers of all processes below this one, on this machine.
std::vector<pid_t> processes_below();

/// Signals that wait for this process as long as an object lives, instead of being handled; those that were
/// ignored before (nohup) still are.
class Requests {
 public:
  Requests();
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  /// Those that came since the last call.
  std::vector<int> take();
  /// Readable when take() has some. SIGCHLD wakes, too.
  int file() const { return file_; }

 private:
  int file_ = -1;
};

inline constexpr std::chrono::seconds kClearsUp(6);  ///< launch/mpirun's guard needs up to four

/// Called with what a job writes to standard error, bytes as they come.
using Hear = std::function<void(std::string_view)>;

class Job {
 public:
  /// Starts a program with its arguments, in a session of its own, so that signals of a terminal come to it
  /// from this process alone. It ends (SIGKILL) when this process does. Throws Error when it cannot be
  /// started.
  Job(const std::vector<std::string>& words, Hear hear);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Takes what the job writes, until there is some, `wake` is readable, the launcher ends, or so many
  /// milliseconds are over. Returns false when the launcher has ended.
  bool wait(int wake, int milliseconds);
  /// Sends a signal to the launcher. A launcher that has just started would die of a request: until two
  /// seconds after the start this waits for its handlers.
  void send(int signal) const;
  /// Once the launcher has ended: ends what it left, and takes the last of what the job wrote. A launcher
  /// that was killed has a guard that clears up: it is given `clears_up`. When all are gone, files of Open
  /// MPI that nobody has removed go as well.
  void end_rest(std::chrono::milliseconds clears_up = kClearsUp);
  /// Of the launcher: its exit code, or 128 + N when signal N ended it.
  int code() const { return code_; }
  bool was_killed() const { return killed_; }

 private:
  void reap();
  void take_output();
  /// Once a second, until there are ranks: what the job has made, for when nobody is left who knows.
  void look_for_traces();

  Hear hear_;
  pid_t launcher_ = -1;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  int output_ = -1;
  bool ended_ = false, killed_ = false;
  int code_ = 0;
  Traces traces_;
  std::chrono::steady_clock::time_point looked_{};
};

}  // namespace octet::supervise
