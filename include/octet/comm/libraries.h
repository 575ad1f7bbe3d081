// The external libraries of a job: MPI, and NCCL between GPUs.
#pragma once

#include <string>

namespace octet::comm {

/// The MPI that runs in this process.
struct RunningMpi {
  std::string library;  ///< "Open MPI v4.1.4"; empty: no launcher started the process
  std::string threads;  ///< the supported thread level by MPI's name: "MPI_THREAD_SERIALIZED"
  bool enough = true;   ///< for a job, which calls MPI from one thread other than main()'s
};
/// Call after find_place() or make_job().
RunningMpi running_mpi();

/// Lets a job continue if its MPI supports too few threads: for `trainer verify`, which reports that in its
/// list. Call before the job is created.
void let_few_threads_pass();

/// Returns "NCCL 2.28.9 (/usr/lib/libnccl.so.2)". Loads NCCL if necessary. Throws Error if NCCL is missing,
/// too old or not built in.
std::string nccl_description();

}  // namespace octet::comm
