// Who started this process, as its environment tells before MPI is asked.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "octet/base/error.h"

namespace octet::comm {

/// A variable's text, or null: environment_variable(), or a table in tests.
using Lookup = std::function<const char*(const char*)>;

/// One process of several that a launcher started.
struct Launched {
  std::string launcher;  ///< in words: "torchrun"; empty: nothing of that kind
  int rank = 0;          ///< as the launcher counts
  int size = 1;
  bool slurm = false;
};

/// A launcher that starts processes without MPI: torchrun, accelerate, deepspeed, a Slurm step of several
/// tasks without PMIx. Each of its processes would be a run of its own. Nothing where there is one process,
/// where MPI's launcher stands between, or where OCTETRUN_SINGLE is set, with which each process is meant to
/// be a run.
Launched launched_without_mpi(const Lookup& variable);

/// How many processes an MPI launcher or Slurm says that there are; 1 where nobody says anything, and with
/// OCTETRUN_SINGLE. MPI that knows of fewer was not reached by the launcher.
Launched claimed_by_launcher(const Lookup& variable);

/// The name and the arguments that this process was started with.
std::vector<std::string> command_line();

/// Why such a process cannot train, with the line to type instead; `arguments` as of command_line(). Empty
/// text on all but the launcher's first process, so that one of them speaks.
Problem wrong_launcher(const Launched& launched, const std::vector<std::string>& arguments);

/// True under launch/mpirun: requests to stop come to ranks as SIGUSR2, and SIGTERM from mpirun, when it ends
/// a job one of whose ranks has failed.
bool stops_are_handed_on(const Lookup& variable);
/// True when mpirun itself started this process, without launch/mpirun: then SIGTERM and Ctrl-C end it a
/// second or two later. `parent` is the name of the parent process.
bool stops_are_kills(const Lookup& variable, const std::string& parent);
/// The name of this process's parent; empty where it cannot be read.
std::string parent_process();

}  // namespace octet::comm
