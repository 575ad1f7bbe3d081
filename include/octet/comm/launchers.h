// Who started this process, as its environment tells before MPI is asked.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "octet/base/error.h"

namespace octet::comm {

/// A variable's text, or null: environment_variable(), or a table in tests.
using Lookup = std::function<const char*(const char*)>;

/// The MPI that a program was built with, and the launcher that belongs to it.
struct ProgramMpi {
  std::string name;    ///< "Open MPI 4.1.4"
  std::string mpirun;  ///< its launcher on this machine; empty where none was found
  bool speaks_pmi2 = true;
};
/// This program's. Its launcher is looked for beside the MPI library that is loaded, then on PATH.
ProgramMpi program_mpi();
/// Whose launcher a file is, by what it is called and what lies beside it: "Open MPI" or "MPICH"; empty where
/// that does not show, and for launch/mpirun.
std::string owner_of_mpirun(const std::string& file);
/// The first launcher of that MPI ("Open MPI 4.1.4" or "Open MPI") in these folders, or empty.
std::string find_mpirun(const std::string& mpi, const std::vector<std::string>& folders);
/// Whether the Open MPI whose library lies in a folder can be started by Slurm's PMI-2. True where its
/// plugins do not lie beside it, for then it is not known.
bool open_mpi_speaks_pmi2(int major_version, const std::string& folder);

/// One process of several that a launcher started.
struct Launched {
  std::string launcher;  ///< in words: "torchrun"; empty: nothing of that kind
  int rank = 0;          ///< as the launcher counts
  int size = 1;
  bool slurm = false;
  /// The processes are on different hosts and see different terminals: each of them prints the error.
  bool one_per_host = false;
  std::string where;  ///< the variables that say so
  /// The variable by which an MPI launcher above knows the process that started this one and the others, for
  /// all of which it stands: "PMIX_RANK=0"; empty: there is none.
  std::string above;
  std::string mpi;  ///< whose launcher it is: "Open MPI", "MPICH or Intel MPI"; empty: no MPI's
  std::string pmi;  ///< how a Slurm step talks to MPI: "PMIx", "PMI-2"; empty: not at all
};

/// A launcher that starts processes without MPI: torchrun, accelerate, deepspeed, a Slurm step of several
/// tasks without PMIx, or with PMI-2 where the program's MPI does not speak that. Each of its processes would
/// be a run of its own; below an MPI launcher, which counts them as one, all would be the same rank. Nothing
/// where there is one process, where MPI's launcher stands between, or where OCTETRUN_SINGLE is set, with
/// which each process is meant to be a run, or mpirun was started on purpose by a process of torchrun.
/// `speaks_pmi2`: asked only where it matters.
Launched launched_without_mpi(const Lookup& variable, const std::function<bool()>& speaks_pmi2);

/// Returns the hosts that an environment of PyTorch's distributed training names, one process a host: RANK
/// and WORLD_SIZE without LOCAL_RANK (training operators of Kubernetes), or NODE_RANK and NNODES
/// (LLaMA-Factory, torchrun's PET_ variables). Without MPI each host would train alone. Size 1 if an MPI
/// launcher or OCTETRUN_SINGLE is set. Commands that do not train may run in such an environment.
Launched hosts_without_mpi(const Lookup& variable);

/// How many processes an MPI launcher or Slurm says that there are; 1 where nobody says anything, and with
/// OCTETRUN_SINGLE. MPI that knows of fewer was not reached by the launcher.
Launched claimed_by_launcher(const Lookup& variable);

/// Throws Error where MPI counts one process, `size`, and the launcher says that there are more: it has
/// started as many runs. The Error is agreed upon, as there is no other rank to tell.
void require_whole_job(int size);

/// The name and the arguments that this process was started with.
std::vector<std::string> command_line();

/// Why such a process cannot work, with the line to type instead; `arguments` as of command_line(). Empty
/// text on all but the launcher's first process, so that one of them speaks. Agreed upon: MPI, which would
/// tell other ranks, is not asked.
Problem wrong_launcher(const Launched& launched, const std::vector<std::string>& arguments,
                       const ProgramMpi& mpi);

/// True under launch/mpirun: requests to stop come to ranks as SIGUSR2, and SIGTERM from mpirun, when it ends
/// a job one of whose ranks has failed.
bool stops_are_handed_on(const Lookup& variable);
/// True when mpirun itself started this process, without launch/mpirun: then SIGTERM and Ctrl-C end it a
/// second or two later. `parent` is the name of the parent process.
bool stops_are_kills(const Lookup& variable, const std::string& parent);
/// Whether what this process writes to standard output reaches a terminal, directly or through a launcher.
/// launch/mpirun says it in OCTETRUN_LAUNCHER, since ranks of other hosts cannot look at its output.
bool output_reaches_terminal(const Lookup& variable);
/// The name of this process's parent; empty where it cannot be read.
std::string parent_process();

}  // namespace octet::comm
