// Ends and removes what a job leaves on this host, also if launch/mpirun is killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace octet::launch {

// Files and processes that Open MPI leaves on this host if mpirun or ranks are killed.

/// Returns the name of this host up to the first dot, as in Open MPI's file names.
std::string short_host_name();

class Leftovers {
 public:
  /// `sessions` is the prefix of mpirun's folder (Settings::sessions). `began` is the start of the job; older
  /// files belong to other jobs.
  Leftovers(std::string sessions, pid_t mpirun, std::chrono::system_clock::time_point began);

  /// Kills remaining ranks, and removes mpirun's folder and the ranks' shared memory. Call it after mpirun
  /// has ended. Takes up to 3 seconds while ranks die. Returns whether mpirun had left its folder.
  bool clear_up() const;
  /// Removes the files that PMIx 5 (Ubuntu 24.04) leaves if ranks were killed.
  void remove_pmix_files() const;

 private:
  std::string sessions_;
  pid_t mpirun_;
  std::chrono::system_clock::time_point began_;
};

// A process that ends mpirun and its ranks if launch/mpirun is killed.

class Guard {
 public:
  /// Starts the process in a new session. It waits for mpirun's process id.
  Guard(const std::string& sessions, std::chrono::system_clock::time_point began);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Called in mpirun's process before exec, because launch/mpirun may be killed at any moment.
  void watch(pid_t mpirun) const;
  /// Ends the guard. mpirun has ended, and this process has cleared up.
  void dismiss();

 private:
  pid_t process_ = -1;
  int words_ = -1;  ///< a pipe to the guard; its end tells the guard that this process is gone
};

}  // namespace octet::launch
