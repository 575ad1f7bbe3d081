// What other people's code a job stands on: MPI, and NCCL between GPUs.
#pragma once

#include <string>

namespace octet::comm {

/// The MPI that runs in this process.
struct RunningMpi {
  std::string library;  ///< "Open MPI v4.1.4"; empty where no launcher started the process
  std::string threads;  ///< the level that it allows, by MPI's name for it: "MPI_THREAD_SERIALIZED"
  bool enough = true;   ///< for a job, which calls it from one thread that is not main()'s
};
/// After find_place() or make_job().
RunningMpi running_mpi();

/// From now on a job whose MPI allows too few threads goes on: for `trainer verify`, which says so in its
/// list. Called before the job is made.
void let_few_threads_pass();

/// "NCCL 2.28.9 (/usr/lib/libnccl.so.2)", loaded now if it was not. Throws Error where it is missing, too old
/// or not built in.
std::string nccl_description();

}  // namespace octet::comm
