// What Open MPI leaves on this host when mpirun or ranks are killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace octet::launch {

/// The name of this host up to the first dot, as Open MPI uses it in names of files.
std::string short_host_name();

class Leftovers {
 public:
  /// `sessions`: what the name of mpirun's folder begins with (Settings::sessions). `began`: nothing that is
  /// older belongs to the job.
  Leftovers(std::string sessions, pid_t mpirun, std::chrono::system_clock::time_point began);

  /// Once mpirun has ended: kills its ranks that are left, and removes its folder and the memory that ranks
  /// shared. Takes up to 3 seconds while ranks die. Returns whether mpirun had left its folder.
  bool clear_up() const;
  /// Removes the files that PMIx 5 (Ubuntu 24.04) leaves of a job when ranks were killed.
  void remove_pmix_files() const;

 private:
  std::string sessions_;
  pid_t mpirun_;
  std::chrono::system_clock::time_point began_;
};

}  // namespace octet::launch
