// The one rank that a process is: MPI when a launcher started it, else alone.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "device_communicator.h"
#include "engine.h"
#include "mpi_transport.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/communicator.h"
#include "rank_communicator.h"
#include "self_transport.h"

namespace octet::comm {
namespace {

// MPI exists once, from the first question about it to the end of the communicator, or of the program when
// there was none. Made and asked for by the program's main thread.
class MpiRank {
 public:
  static MpiRank& of_process() {
    static MpiRank rank;
    return rank;
  }

  const Place& place() {
    start();
    return engine_->place();
  }

  std::vector<std::string> exchange_facts(const std::string& mine) {
    start();
    check(!taken_, "facts are exchanged before there is a communicator");
    return job_->control().all_gather_bytes(mine);
  }

  std::unique_ptr<Communicator> make_communicator(Device& device, Carrier carrier) {
    start();
    if (taken_) {
      throw Error(Problem{.what = "a second communicator in one MPI process",
                          .fix = "make one communicator a process"});
    }
    const Group world{.name = "world", .ranks = all_ranks(place().size)};
    std::unique_ptr<Communicator> made;
    if (device.kind() == DeviceKind::cuda && place().size > 1) {
      made = std::make_unique<DeviceCommunicator>(device, job_, world, carrier);
    } else {
      made = std::make_unique<RankCommunicator>(device, job_, world);
    }
    taken_ = true;
    return made;
  }

  MpiRank(const MpiRank&) = delete;
  MpiRank& operator=(const MpiRank&) = delete;

 private:
  MpiRank() = default;
  // Ends MPI where there was no communicator, or where an exception went through it. A rank that ends alone
  // does so without MPI_Finalize and with the program's own exit code: the launcher then ends the others.
  ~MpiRank() {
    if (engine_) engine_->shutdown(std::chrono::seconds(5));
  }

  void start() {
    if (engine_) return;
    engine_ = std::make_shared<Engine>(make_mpi_transport);
    // What a step costs without its communication is what a run with it is compared with.
    const bool removed = std::getenv("OCTET_REMOVE_COMMUNICATION") != nullptr;
    if (removed)
      log::warn("OCTET_REMOVE_COMMUNICATION is set: ranks exchange no values, and results are wrong");
    job_ = std::make_shared<RankJob>(RankOptions{.engine = engine_, .end_engine = true, .removed = removed});
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<RankJob> job_;
  bool taken_ = false;
};

}  // namespace

bool launched_by_mpi() {
  // Open MPI; Hydra (MPICH, Intel) and Slurm's PMI-1 and PMI-2; PMIx (Slurm, PRRTE).
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

std::unique_ptr<Communicator> make_communicator(Device& device, Carrier carrier) {
  return launched_by_mpi() ? MpiRank::of_process().make_communicator(device, carrier)
                           : make_self_communicator(device);
}

Place find_place() {
  if (launched_by_mpi()) return MpiRank::of_process().place();
  return SelfTransport().place();
}

std::vector<std::string> exchange_facts(const std::string& mine) {
  if (launched_by_mpi()) return MpiRank::of_process().exchange_facts(mine);
  return {mine};
}

}  // namespace octet::comm
