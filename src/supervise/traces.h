// What Open MPI leaves on a machine when mpirun and its ranks are killed: the folder of its job, and memory
// that the ranks shared. launch/mpirun removes it, and where that was killed, what watches over it does. This
// is for when both are gone.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace octet::supervise {

class Traces {
 public:
  /// Reads from the environment of a process, which must still be there, what its job has made. A process
  /// that is no rank of Open MPI 4 adds nothing.
  void note(pid_t process);
  bool empty() const { return folders_.empty(); }
  /// Removes it, once all processes are gone. What is not there, or is not this user's, is left alone.
  void remove() const;

 private:
  std::set<std::string> folders_;  ///< of the jobs, named pid.N after mpirun
  std::set<std::string> jobs_;     ///< their numbers as they stand in the names of shared memory
};

}  // namespace octet::supervise
