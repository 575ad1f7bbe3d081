// Finds the mpirun of this machine, and its settings for Octet.
#pragma once

#include <string>
#include <vector>

#include "arguments.h"
#include "requests.h"

namespace octet::launch {

enum class Mpi {
  open,  ///< Open MPI: forwards signals to ranks of other hosts, and needs -x for each variable
  hydra  ///< MPICH and others
};

/// An mpirun and the output of its --version.
struct Mpirun {
  std::string file;
  std::string version;
};

/// Options and environment of mpirun.
struct Settings {
  Mpi mpi = Mpi::open;
  Words options;          ///< precede the user's options
  Environment variables;  ///< all of them
  /// The prefix of the folder that mpirun creates for its job; its process id follows. Empty for an MPI that
  /// creates none.
  std::string sessions;
  std::vector<std::string> warnings;
};

/// Returns the first mpirun on PATH of the MPI that the program among `words` was built with, or the file in
/// OCTETRUN_MPIRUN_FILE. If the program's MPI is unknown, any MPI counts. Throws Error (usage) if there is
/// none. Returns early, with any result, if `requests` has a stop.
Mpirun find_mpirun(const Words& words, const Environment& environment, Requests& requests);

/// Returns the settings of this mpirun. More ranks than cores are allowed. Ranks are not bound to single
/// cores, because the program divides the cores itself. Root is allowed. Octet's variables reach all hosts.
/// Creates the folder that Open MPI 4 keeps for all jobs of a user.
Settings settings_for(const Mpirun& mpirun, const Words& words, Environment environment, bool hosts,
                      Requests& requests);

}  // namespace octet::launch
