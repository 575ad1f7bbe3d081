// The mpirun of this machine that starts the ranks, and what Octet wants of it.
#pragma once

#include <string>
#include <vector>

#include "call.h"
#include "requests.h"

namespace octet::launch {

enum class Mpi {
  open,  ///< Open MPI: forwards signals to ranks of other hosts, and needs -x for each variable
  hydra  ///< MPICH and others
};

/// An mpirun and its description of itself.
struct Mpirun {
  std::string file;
  std::string version;
};

/// What this run wants of mpirun.
struct Settings {
  Mpi mpi = Mpi::open;
  Words options;          ///< before the user's own
  Environment variables;  ///< all of them
  /// The folder that mpirun makes for its job is named so, and then by its process number. Empty for an MPI
  /// that makes none.
  std::string sessions;
  std::vector<std::string> warnings;
};

/// The first mpirun on PATH of the MPI that the program among `words` was built with, or the file that
/// OCTETRUN_MPIRUN_FILE names. Of any MPI when the program's is not known. Throws Error (usage) when there is
/// none; returns early, with any result, when `requests` has a stop.
Mpirun find_mpirun(const Words& words, const Environment& environment, Requests& requests);

/// How this mpirun is told: more ranks than cores are allowed, ranks are not bound to single cores (the
/// program divides the cores itself), root is allowed, and Octet's variables reach all hosts. Makes the
/// folder that Open MPI 4 keeps for all jobs of a user.
Settings settings_for(const Mpirun& mpirun, const Words& words, Environment environment, bool hosts,
                      Requests& requests);

}  // namespace octet::launch
