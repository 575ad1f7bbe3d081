// The rank of this process: over MPI if a launcher started it, otherwise alone.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "job/rank_job.h"
#include "messages/message_engine.h"
#include "messages/self_transport.h"
#include "mpi/mpi_transport.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/job.h"

namespace octet::comm {
namespace {

// MPI of the process. It exists from the first use to the end of the job, or to the end of the program if
// there is no job. Used by the main thread only.
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

  std::unique_ptr<Job> make_job() {
    start();
    if (taken_)
      throw Error(
          Problem{.what = "a second job in one MPI process", .fix = "create only one job in a process"});
    taken_ = true;
    // For measurements: a run without communication shows the cost of communication by comparison.
    const bool removed = environment_variable("OCTETRUN_REMOVE_COMMUNICATION") != nullptr;
    if (removed && place().rank == 0)
      log::warn("OCTETRUN_REMOVE_COMMUNICATION is set: ranks exchange no values, and results are wrong");
    return std::make_unique<RankJob>(RankOptions{.engine = engine_, .end_engine = true, .removed = removed});
  }

  Survivors survive() {
    if (engine_) engine_->stop();
    engine_.reset();
    engine_ = std::make_shared<MessageEngine>(make_survivors_transport);
    taken_ = false;
    return {.place = engine_->place(), .lost = ranks_lost()};
  }

  MpiRank(const MpiRank&) = delete;
  MpiRank& operator=(const MpiRank&) = delete;

 private:
  MpiRank() = default;
  // Ends MPI if there was no job, or after an exception. A rank that ends alone exits without MPI_Finalize
  // and with the program's own exit code. The launcher then ends the other ranks.
  ~MpiRank() {
    if (engine_) engine_->shutdown(std::chrono::seconds(5));
  }

  void start() {
    if (!engine_) engine_ = std::make_shared<MessageEngine>(make_mpi_transport);
  }

  std::shared_ptr<MessageEngine> engine_;
  bool taken_ = false;
};

}  // namespace

bool launched_by_mpi() {
  // Open MPI; Hydra (MPICH, Intel) and Slurm's PMI-1 and PMI-2; PMIx (Slurm, PRRTE).
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"}) {
    if (environment_variable(name) != nullptr) return true;
  }
  return false;
}

RanksLost::RanksLost()
    : Error(Problem{.what = "ranks of the job have ended",
                    .fix = "start the run again: it resumes from its newest checkpoint",
                    .code = ExitCode::hang}) {}

int least_survivors() {
  const char* text = environment_variable("OCTETRUN_SURVIVORS");
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

Survivors survive() {
  return MpiRank::of_process().survive();
}

std::unique_ptr<Job> make_job() {
  return launched_by_mpi() ? MpiRank::of_process().make_job() : make_self_job();
}

Place find_place() {
  if (launched_by_mpi()) return MpiRank::of_process().place();
  return SelfTransport().place();
}

std::unique_ptr<Job> make_self_job() {
  return std::make_unique<RankJob>(RankOptions{.transport = std::make_shared<SelfTransport>()});
}

}  // namespace octet::comm
