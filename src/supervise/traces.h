// Removes files that Open MPI leaves on a machine if mpirun and its ranks are killed. These are the folder of
// its job, memory that the ranks shared, and memory shared with mpirun's PMIx. launch/mpirun or its guard
// removes them; this is for the case that both were killed.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace octet::supervise {

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

}  // namespace octet::supervise
