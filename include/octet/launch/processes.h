// Processes of this machine, as /proc shows them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::launch {

/// A snapshot of the running processes and their parents.
class ProcessTree {
 public:
  ProcessTree();
  std::vector<pid_t> children(pid_t parent) const;
  /// Returns all descendants of `root`, each after its parent.
  std::vector<pid_t> below(pid_t root) const;

 private:
  std::vector<std::pair<pid_t, pid_t>> by_parent_;  ///< parent and child, sorted
};

/// One process. A later process with the same number is a different process.
class Process {
 public:
  /// `pid` is the number of a process that exists now.
  explicit Process(pid_t pid);
  pid_t pid() const { return pid_; }
  /// Whether it has ended. Its parent may not have read its exit code yet.
  bool gone() const;

 private:
  pid_t pid_;
  std::string started_;  ///< in ticks since the machine's start
};

/// Whether a process is a rank: Open MPI and MPICH give each rank its number in the environment.
bool is_rank(pid_t process);
/// Whether a variable of a process's environment begins with one of these texts.
bool has_variable(pid_t process, const std::vector<std::string>& beginnings);
/// A set of signals from /proc/PID/status (SigCgt, SigIgn, ShdPnd), bit N - 1 for signal N. 0 for a process
/// that is gone.
std::uint64_t signals_of(pid_t process, std::string_view line);
/// Whether a process has a handler for a signal.
bool catches(pid_t process, int signal);
/// The name of a process's program, at most 15 characters.
std::string program_of(pid_t process);
/// Numbers of all processes.
std::vector<pid_t> all_processes();
/// A file of a process; empty when the process is gone, or belongs to another user.
std::string file_of(pid_t process, const std::string& name);

}  // namespace octet::launch
