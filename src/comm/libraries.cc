#include "octet/comm/libraries.h"

#include "gpu/nccl_library.h"
#include "mpi/mpi_world.h"

namespace octet::comm {

RunningMpi running_mpi() {
  if (World::of_process == nullptr) return {};
  const World& world = *World::of_process;
  static constexpr const char* kNames[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED",
                                           "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};
  return {.library = mpi_library_version(),
          .threads = kNames[static_cast<int>(world.thread_level)],
          .enough = world.thread_level >= boost::mpi::threading::funneled};
}

std::string nccl_description() {
  load_nccl();
  return nccl_library().description();
}

}  // namespace octet::comm
