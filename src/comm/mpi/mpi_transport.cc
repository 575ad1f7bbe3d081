#include "mpi/mpi_transport.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "job/same_build.h"
#include "mpi/mpi_start.h"
#include "mpi/mpi_world.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/base/timing.h"
#include "octet/comm/job.h"

namespace octet::comm {
namespace {

namespace mpi = boost::mpi;

// How long a failed rank that does not print waits for the end of the job.
constexpr auto last_words_patience = std::chrono::seconds(5);
// How long messages under way may take to fail after their communicator is revoked.
constexpr auto withdrawal_patience = std::chrono::seconds(5);

class MpiTransport final : public Transport {
 public:
  /// Covers all started ranks, or the survivors if MPI already runs.
  explicit MpiTransport(bool of_survivors) {
    if (!of_survivors) start_mpi();
    check(World::of_process != nullptr, "MPI runs");
    world_ = World::of_process;
    const Deadline deadline = until_opened(of_survivors ? "continuing without ended ranks" : "MPI's start");
    try {
      guarded([&] {
        if (of_survivors) world_->leave_out_the_lost();
        MPI_Comm_set_errhandler(world_->all, MPI_ERRORS_RETURN);
        if (!of_survivors) introduce();
        world_->last_words = apart(world_->all);
        place_ = find_place(*world_);
        any_thread_ = world_->thread_level >= mpi::threading::serialized;
      });
    } catch (const RanksLost&) {
      revoke(world_->all);  // makes the call fail on the other ranks too
      throw;
    }
    decide_whether_to_survive();
  }

  const Place& place() const override { return place_; }
  // Far below 2^31, because counts are ints and some paths inside MPI multiply them. Small enough that
  // messages complete regularly while a long slice is sent, which is the engine's sign of progress.
  std::size_t max_message() const override { return std::size_t{1} << 24; }

  int open_lane(Queue queue, const std::vector<int>& ranks) override {
    require_whole();
    const Deadline deadline = until_opened("the opening of a channel");
    guarded([&] { world_->lanes.push_back(quiet(world_->all.split(ranks.front(), place_.rank))); });
    bulk_.push_back(queue == Queue::gather || queue == Queue::reduce);
    return static_cast<int>(bulk_.size()) - 1;
  }

  int isend(int lane, int peer, int tag, const void* data, std::size_t bytes) override {
    require_whole();
    const int ticket = new_ticket({.tag = tag, .bulk = is_bulk(lane)});
    Pending& pending = pending_[ticket];
    if (pending.bulk) {
      must(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, lane_of(lane), &pending.request),
           "MPI_Isend");
    } else {
      pending.control = guarded([&] {
        return lane_of(lane).isend(peer, tag, static_cast<const char*>(data), static_cast<int>(bytes));
      });
    }
    return ticket;
  }

  // Accepts any tag: a message of another collective must be reported as an error, not wait forever.
  int irecv(int lane, int peer, int tag, void* data, std::size_t bytes) override {
    require_whole();
    const int ticket = new_ticket({.tag = tag, .bytes = bytes, .receives = true, .bulk = is_bulk(lane)});
    Pending& pending = pending_[ticket];
    if (pending.bulk) {
      must(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, MPI_ANY_TAG, lane_of(lane),
                     &pending.request),
           "MPI_Irecv");
    } else {
      pending.control = guarded([&] {
        return lane_of(lane).irecv(peer, mpi::any_tag, static_cast<char*>(data), static_cast<int>(bytes));
      });
    }
    return ticket;
  }

  bool test(int ticket) override {
    require_whole();
    Pending& pending = pending_[ticket];
    const std::optional<MPI_Status> status = pending.bulk ? test_bulk(pending) : test_control(pending);
    if (!status) return false;
    pending.active = false;
    if (pending.receives) {
      int bytes = 0;
      must(MPI_Get_count(&*status, MPI_BYTE, &bytes), "MPI_Get_count");
      if (status->MPI_TAG != pending.tag || static_cast<std::size_t>(bytes) != pending.bytes) {
        throw Error(mismatch(pending.tag, pending.bytes, status->MPI_TAG, static_cast<std::size_t>(bytes)));
      }
    }
    pending.control = {};
    free_.push_back(ticket);
    return true;
  }

  std::optional<Waiting> probe(int lane) override {
    require_whole();
    const auto found = guarded([&] { return lane_of(lane).iprobe(); });
    if (!found) return std::nullopt;
    return Waiting{.peer = found->source(),
                   .bytes = static_cast<std::size_t>(found->count<char>().value_or(0))};
  }

  // Completed sends may still be in MPI's queues, which advance only inside MPI calls.
  void progress() override {
    if (lost_) return;
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_->all, &found, MPI_STATUS_IGNORE);
  }

  // Communicators are freed with the world, then MPI ends. If ranks ended before, MPI's last call may wait
  // for them (Open MPI 5.0.11). The other ranks then exit without that call, as after an error.
  void finish() override {
    pending_.clear();
    if (world_->lost_any) return;
    delete std::exchange(World::of_process, nullptr);
    world_ = nullptr;
  }

  bool let_go() override {
    if (!survives_) return false;
    lost_ = true;
    revoke(world_->all);
    for (const mpi::communicator& lane : world_->lanes) revoke(lane);
    return withdraw();
  }

  [[noreturn]] void end_job(const std::string& message, int code) override {
    if (!message.empty()) {
      if (may_speak(world_->last_words, place_)) {
        log::error(message);
      } else {
        std::this_thread::sleep_for(last_words_patience);  // the rank that prints ends this rank meanwhile
      }
    }
    EndsItself::allow();
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
  }

  bool is_process() const override { return true; }
  bool any_thread() const override { return any_thread_; }

 private:
  struct Pending {
    int tag = 0;
    std::size_t bytes = 0;
    bool receives = false;
    bool bulk = false;
    bool active = true;                      ///< MPI may still use its memory
    MPI_Request request = MPI_REQUEST_NULL;  ///< for bulk data
    mpi::request control;                    ///< for other lanes
  };

  // Ranks with different builds or settings end together, and MPI with them.
  void introduce() {
    const std::vector<std::string> told = introductions(*world_);
    try {
      require_same_build(told, world_->all.rank());
    } catch (const Error&) {
      finish();
      throw;
    }
  }

  // The thread of the survivors' transport is not the thread that started MPI.
  void decide_whether_to_survive() {
    if (least_survivors() == 0) return;
    survives_ = has_ulfm() && any_thread_;
    if (survives_ || place_.rank != 0) return;
    log::warn("OCTETRUN_SURVIVORS: " + mpi_library_version() +
              " cannot continue without an ended rank (Open MPI 5.0 and later can, by ULFM): the job ends "
              "with the rank, and has to be started again");
  }

  void require_whole() const {
    if (lost_) throw RanksLost();
  }

  // Boost.MPI reports a failed request as not complete.
  static bool still_under_way(Pending& pending) {
    if (!pending.bulk && !pending.control.active()) return false;
    try {
      return !(pending.bulk ? test_bulk(pending) : test_control(pending));
    } catch (const Error&) {
      return false;
    }
  }

  // After revocation, every message under way fails at its next test. MPI then no longer uses its memory.
  bool withdraw() {
    const auto end = Clock::now() + withdrawal_patience;
    for (Pending& pending : pending_) {
      while (pending.active && Clock::now() < end) pending.active = still_under_way(pending);
    }
    return std::ranges::none_of(pending_, &Pending::active);
  }

  static std::optional<MPI_Status> test_bulk(Pending& pending) {
    int through = 0;
    MPI_Status status;
    const int code = MPI_Test(&pending.request, &through, &status);
    if (code != MPI_SUCCESS && truncated(code)) throw_too_long(pending, status.MPI_TAG);
    must(code, "MPI_Test");
    return through ? std::optional(status) : std::nullopt;
  }

  static std::optional<MPI_Status> test_control(Pending& pending) {
    try {
      const auto status = pending.control.test();
      return status ? std::optional<MPI_Status>(MPI_Status(*status)) : std::nullopt;
    } catch (const mpi::exception& error) {
      if (truncated(error.result_code())) throw_too_long(pending, pending.tag);
      must(error.result_code(), error.routine());
      throw;
    }
  }

  [[noreturn]] static void throw_too_long(const Pending& pending, int tag) {
    throw Error(mismatch(pending.tag, pending.bytes, tag, pending.bytes + 1) + " or more");
  }

  Deadline until_opened(const char* what) const { return until_over(what, world_->all.rank()); }
  static mpi::communicator quiet(mpi::communicator made) {
    must(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return made;
  }
  static mpi::communicator apart(const mpi::communicator& from) {
    return quiet(mpi::communicator(from, mpi::comm_duplicate));
  }
  const mpi::communicator& lane_of(int lane) const { return world_->lanes[static_cast<std::size_t>(lane)]; }
  bool is_bulk(int lane) const { return bulk_[static_cast<std::size_t>(lane)]; }

  int new_ticket(Pending pending) {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(pending_.size()));
      pending_.emplace_back();
    }
    const int ticket = free_.back();
    free_.pop_back();
    pending_[ticket] = std::move(pending);
    return ticket;
  }

  World* world_ = nullptr;
  Place place_;
  bool any_thread_ = false;
  bool survives_ = false;   // continues without ranks that end
  bool lost_ = false;       // some ranks have ended
  std::vector<bool> bulk_;  // by lane
  std::vector<Pending> pending_;
  std::vector<int> free_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport() {
  return std::make_unique<MpiTransport>(false);
}

std::unique_ptr<Transport> make_survivors_transport() {
  return std::make_unique<MpiTransport>(true);
}

std::vector<int> ranks_lost() {
  return World::of_process == nullptr ? std::vector<int>() : World::of_process->lost;
}

}  // namespace octet::comm
