// Detects the launcher of this process from the environment, before MPI is initialised.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "octet/base/error.h"

namespace octet::comm {

/// Returns the text of a variable, or null: environment_variable(), or a table in tests.
using Lookup = std::function<const char*(const char*)>;

/// The MPI library that a program was built with, and its launcher.
struct ProgramMpi {
  std::string name;    ///< "Open MPI 4.1.4"
  std::string mpirun;  ///< its launcher on this machine; empty: none was found
  bool speaks_pmi2 = true;
};
/// Returns the MPI of this program. Its launcher is searched for next to the loaded MPI library, then on
/// PATH.
ProgramMpi program_mpi();
/// Returns the MPI that a launcher file belongs to, judged by the file name and the neighbouring files: "Open
/// MPI" or "MPICH". Empty if neither shows it, and for launch/mpirun.
std::string owner_of_mpirun(const std::string& file);
/// Returns the first launcher of that MPI ("Open MPI 4.1.4" or "Open MPI") in these folders, or an empty
/// string.
std::string find_mpirun(const std::string& mpi, const std::vector<std::string>& folders);
/// Returns whether Slurm's PMI-2 can start the Open MPI that has its library in `folder`. Returns true if the
/// plugins are not next to the library, because the answer is then unknown.
bool open_mpi_speaks_pmi2(int major_version, const std::string& folder);

/// One of several processes that a launcher started.
struct Launched {
  std::string launcher;  ///< for messages: "torchrun"; empty: no launcher of this kind
  int rank = 0;          ///< as counted by the launcher
  int size = 1;
  bool slurm = false;
  /// The processes run on different hosts and have different terminals, so each of them prints the error.
  bool one_per_host = false;
  std::string where;  ///< the variables that show it
  /// Set if an MPI launcher started the parent of these processes: the variable by which that launcher
  /// numbers the parent, which it counts as one process: "PMIX_RANK=0". Empty: there is no such launcher.
  std::string above;
  std::string mpi;  ///< MPI of the launcher: "Open MPI", "MPICH or Intel MPI"; empty: none
  std::string pmi;  ///< interface between a Slurm step and MPI: "PMIx", "PMI-2"; empty: none
};

/// Detects a launcher that starts processes without MPI: torchrun, accelerate, deepspeed, or a Slurm step of
/// several tasks. A Slurm step counts if it has no PMIx, or if it has PMI-2 and the program's MPI does not
/// support PMI-2. Each process would be a separate run. Below an MPI launcher, which counts them as one
/// process, all would have the same rank. Returns an empty result for one process, and if MPI's launcher
/// started the processes directly. The result is also empty if OCTETRUN_SINGLE makes each process a run, or
/// if a process of torchrun started mpirun on purpose. `speaks_pmi2` is called only if its answer matters.
Launched launched_without_mpi(const Lookup& variable, const std::function<bool()>& speaks_pmi2);

/// Returns the hosts that an environment of PyTorch's distributed training names, one process a host: RANK
/// and WORLD_SIZE without LOCAL_RANK (training operators of Kubernetes), or NODE_RANK and NNODES
/// (LLaMA-Factory, torchrun's PET_ variables). Without MPI each host would train alone. Size 1 if an MPI
/// launcher or OCTETRUN_SINGLE is set. Commands that do not train may run in such an environment.
Launched hosts_without_mpi(const Lookup& variable);

/// Returns the number of processes that an MPI launcher or Slurm reports. Returns 1 if neither reports a
/// number or OCTETRUN_SINGLE is set. If MPI counts fewer processes, the launcher did not reach MPI.
Launched claimed_by_launcher(const Lookup& variable);

/// Throws Error if MPI counts one process (`size`) but the launcher reports more, because the launcher then
/// started separate runs. The Error is marked as agreed upon: there is no other rank to inform.
void require_whole_job(int size);

/// Returns the name and the arguments of this process.
std::vector<std::string> command_line();

/// Returns why this process cannot work, with the correct command line. `arguments` is the result of
/// command_line(). The text is empty on all processes except the launcher's first, so it is printed once. The
/// Problem is marked as agreed upon, because MPI is not used to inform other ranks.
Problem wrong_launcher(const Launched& launched, const std::vector<std::string>& arguments,
                       const ProgramMpi& mpi);

/// Returns true under launch/mpirun. Requests to stop then arrive as SIGUSR2. SIGTERM comes from mpirun when
/// it ends a job after a rank has failed.
bool stops_are_handed_on(const Lookup& variable);
/// Returns true if mpirun itself started this process, without launch/mpirun. SIGTERM and Ctrl-C then kill
/// the process one or two seconds later. `parent` is the name of the parent process.
bool stops_are_kills(const Lookup& variable, const std::string& parent);
/// Returns whether standard output of this process reaches a terminal, directly or through a launcher.
/// launch/mpirun sets this in OCTETRUN_LAUNCHER, because ranks on other hosts cannot check its output.
bool output_reaches_terminal(const Lookup& variable);
/// Returns the name of the parent process; empty if it cannot be read.
std::string parent_process();

}  // namespace octet::comm
