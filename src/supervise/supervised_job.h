// One start of a job under the supervisor: its processes, its output, and its traces.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace octet::supervise {

// Removes files that Open MPI leaves on a machine if mpirun and its ranks are killed. These are the folder of
// its job, memory that the ranks shared, and memory shared with mpirun's PMIx. launch/mpirun or its guard
// removes them; this is for the case that both were killed.

class Traces {
 public:
  /// Notes the files of a process's job from its environment and its mappings; the process must still exist.
  /// Other processes than ranks of Open MPI 4 or 5 add nothing.
  void note(pid_t process);
  /// Whether traces are missing: ranks have their folder from their start, and their memory some time later.
  bool incomplete() const { return folders_.empty() || jobs_.empty(); }
  /// Removes the files. Call it after all processes have ended. Missing files and files of other users are
  /// skipped.
  void remove() const;

 private:
  void note_memory(pid_t process);

  std::set<std::string>
      folders_;  ///< of the jobs: pid.N after mpirun; of Open MPI 5 prterun.HOST.N.USER or ompi.N
  std::set<std::string> files_;  ///< memory that PMIx 5 shares with the ranks
  std::set<std::string> jobs_;   ///< job numbers, as in the names of shared memory
};

// The processes of one start: a launcher and its descendants.

/// Makes this process the parent of its orphaned descendants, so that processes that a launcher leaves are
/// found.
void adopt_orphans();
/// Returns the ids of all descendants of this process on this machine.
std::vector<pid_t> processes_below();

/// Queues signals for this process during its lifetime, instead of handling them. Signals that were ignored
/// before (nohup) stay ignored.
class Requests {
 public:
  Requests();
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  /// Returns the signals since the last call.
  std::vector<int> take();
  /// Returns a file that is readable if take() has signals. SIGCHLD makes it readable, too.
  int file() const { return file_; }

 private:
  int file_ = -1;
};

inline constexpr std::chrono::seconds kClearsUp(6);  ///< launch/mpirun's guard needs up to four

/// Receives the bytes that a job writes to standard error.
using Hear = std::function<void(std::string_view)>;

class Job {
 public:
  /// Starts a program with its arguments in a new session, so that it gets signals of a terminal only from
  /// this process. It gets SIGKILL when this process ends. Throws Error if it cannot be started.
  Job(const std::vector<std::string>& words, Hear hear);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Waits until the job writes output, `wake` is readable, the launcher ends, or the timeout expires; passes
  /// output to `hear`. Returns false if the launcher has ended.
  bool wait(int wake, int milliseconds);
  /// Sends a signal to the launcher. In the launcher's first two seconds, waits until it has installed its
  /// handlers, because the signal would kill it before.
  void send(int signal) const;
  /// Ends remaining processes after the launcher has ended, and reads the last output of the job. The guard
  /// of a killed launcher gets `clears_up` to clear up. Afterwards removes remaining files of Open MPI.
  void end_rest(std::chrono::milliseconds clears_up = kClearsUp);
  /// Returns the launcher's exit code, or 128 + N if signal N ended it.
  int code() const { return code_; }
  bool was_killed() const { return killed_; }

 private:
  void reap();
  void take_output();
  /// Once a second until ranks exist, records the files of the job, in case no process remains to remove
  /// them.
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
