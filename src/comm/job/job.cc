// Jobs: the rank of this process, and a rank of a job that does not exist.
#include "octet/comm/job.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "job/rank_job.h"
#include "messages/local_transport.h"
#include "messages/message_engine.h"
#include "messages/transport.h"
#include "mpi/mpi_transport.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

// The rank of this process: over MPI if a launcher started it, otherwise alone.

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

// A rank of a job that does not exist.

namespace {

class DryChannel final : public Channel {
 public:
  DryChannel(const Place& place, std::vector<int> ranks) : place_(place), ranks_(std::move(ranks)) {}
  const Place& place() const override { return place_; }
  int rank_of_job(int rank) const override { return ranks_.at(static_cast<std::size_t>(rank)); }
  std::string broadcast(const std::string& bytes, int) override { return bytes; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return std::vector<std::string>(static_cast<std::size_t>(place_.size), bytes);
  }
  // A plan may have a million ranks.
  std::vector<std::int64_t> all_gather_int(std::int64_t value) override {
    return std::vector<std::int64_t>(static_cast<std::size_t>(place_.size), value);
  }

 private:
  Place place_;
  std::vector<int> ranks_;
};

class DryCollectives final : public Collectives {
 public:
  DryCollectives(Device& device, const Place& job, const Group& group)
      : channel_(group.size() == job.size ? job : place_among(job, group.ranks), group.ranks),
        gather_(device.make_stream({.name = "gather"})),
        reduce_(device.make_stream({.name = "reduce"})) {
    check(device.kind() == DeviceKind::dry, "a planned rank has a dry device");
  }

  const Place& place() const override { return channel_.place(); }
  Channel& channel() override { return channel_; }
  Stream& gather_stream() override { return *gather_; }
  Stream& reduce_stream() override { return *reduce_; }

  void reduce_scatter(Stream&, const ReduceScatterArgs&) override {}
  void all_gather(Stream&, const AllGatherArgs&) override {}
  void all_gather_values(Stream&, const AllGatherValuesArgs&) override {}
  void all_to_all(Stream&, const AllToAllArgs&) override {}
  void all_reduce_max(Stream&, const char*, float*, std::int64_t) override {}
  void all_reduce_sum(Stream&, const char*, std::int64_t*, std::int64_t) override {}
  void all_reduce_sum(Stream&, const char*, double*, std::int64_t) override {}
  void share(const std::vector<SharedMemory>&) override {}
  void unshare(const std::vector<SharedMemory>&) override {}
  std::vector<Traffic> take_traffic() override { return {}; }
  void take_times(bool) override {}
  double seconds_busy() override { return 0; }
  std::string carrier() const override { return {}; }

 private:
  void pass(Stream&, const SendArgs*, const ReceiveArgs*) override {}

  DryChannel channel_;
  std::unique_ptr<Stream> gather_, reduce_;
};

class DryJob final : public Job {
 public:
  explicit DryJob(const Place& place) : main_(place, all_ranks(place.size)) {
    check(place.size >= 1 && place.rank >= 0 && place.rank < place.size, "a rank has a place in its job");
  }
  const Place& place() const override { return main_.place(); }
  std::string broadcast(const std::string& bytes, int root) override { return main_.broadcast(bytes, root); }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return main_.all_gather_bytes(bytes);
  }
  std::vector<std::int64_t> all_gather_int(std::int64_t value) override {
    return main_.all_gather_int(value);
  }
  std::unique_ptr<Channel> channel(const std::string&) override {
    return std::make_unique<DryChannel>(main_);
  }
  std::unique_ptr<Channel> channel(const std::string&, const Group& group) override {
    return std::make_unique<DryChannel>(place_among(place(), group.ranks), group.ranks);
  }
  std::unique_ptr<Collectives> collectives(const Group& group, Device& device, Carrying) override {
    return std::make_unique<DryCollectives>(device, place(), group);
  }
  void watch(const WatchOptions&) override {}
  std::string trace() const override { return "[]"; }
  std::vector<Traffic> take_traffic() override { return {}; }
  void abort(int code) override { std::_Exit(code); }

 private:
  DryChannel main_;
};

}  // namespace

std::unique_ptr<Job> make_dry_job(const Place& place) {
  return std::make_unique<DryJob>(place);
}

}  // namespace octet::comm
