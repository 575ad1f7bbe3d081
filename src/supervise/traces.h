// What Open MPI leaves on a machine when mpirun and its ranks are killed: the folder of its job, and memory
// that the ranks shared, with mpirun's PMIx too. launch/mpirun removes it, and where that was killed, what
// watches over it does. This is for when both are gone.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace octet::supervise {

class Traces {
 public:
  /// Reads from the environment and the mappings of a process, which must still be there, what its job has
  /// made. A process that is no rank of Open MPI 4 or 5 adds nothing.
  void note(pid_t process);
  /// Whether something is still to be found: ranks have their folder from their start, their memory some time
  /// later.
  bool incomplete() const { return folders_.empty() || jobs_.empty(); }
  /// Removes it, once all processes are gone. What is not there, or is not this user's, is left alone.
  void remove() const;

 private:
  void note_memory(pid_t process);

  std::set<std::string>
      folders_;  ///< of the jobs: pid.N after mpirun; of Open MPI 5 prterun.HOST.N.USER or ompi.N
  std::set<std::string> files_;  ///< memory that PMIx 5 shares with the ranks
  std::set<std::string> jobs_;   ///< their numbers as they stand in the names of shared memory
};

}  // namespace octet::supervise
