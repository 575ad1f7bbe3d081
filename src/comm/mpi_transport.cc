#include "mpi_transport.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/mpi/collectives.hpp>
#include <boost/serialization/string.hpp>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "deadline.h"
#include "mpi_survival.h"
#include "mpi_world.h"
#include "octet/base/build.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/memory_room.h"
#include "octet/comm/job.h"
#include "octet/comm/libraries.h"
#include "same_build.h"
#include "self_transport.h"

namespace octet::comm {
namespace {

using Clock = std::chrono::steady_clock;
namespace mpi = boost::mpi;

// Set by the program's main thread before it makes a job.
std::atomic<bool> few_threads_pass = false;

// How much longer than the rank below it a rank waits before it says why the job ends, how long it lets its
// announcement travel, and how long a silent rank waits to be ended.
constexpr auto turn_to_speak = std::chrono::milliseconds(300);
constexpr auto announcement = std::chrono::milliseconds(50);
constexpr auto last_words_patience = std::chrono::seconds(5);
// How long messages under way may take to fail once they are revoked.
constexpr auto withdrawal_patience = std::chrono::seconds(5);
// How long ranks may take for the calls of MPI that wait for all others: splitting communicators. No
// collective is watched then, and nothing but the end of the process ends such a call.
std::chrono::seconds opening_patience() {
  const char* text = environment_variable("OCTETRUN_START_TIMEOUT");
  const int seconds = text ? std::atoi(text) : 0;
  return std::chrono::seconds(seconds > 0 ? seconds : 600);
}

// Inside a host Open MPI sends up to 4 KiB at once and more after a question, in pieces of 32 KiB. Short
// slices gain more from going at once than copies of them cost. What the user has set stays.
void prefer_larger_messages() {
  for (const char* shared_memory : {"vader", "sm"}) {  // of Open MPI 4 and 5
    const std::string name = std::string("OMPI_MCA_btl_") + shared_memory;
    setenv((name + "_eager_limit").c_str(), "16384", 0);
    setenv((name + "_max_send_size").c_str(), "65536", 0);
  }
}

/// What a rank tells the others before there are lanes.
struct HostFacts {
  int lowest = 0;  ///< rank of its node, which the node is known by
  int level = 0;   ///< threads that its MPI allows
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& lowest& level;
  }
};

class MpiTransport final : public Transport {
 public:
  /// Of all ranks that were started, or, when MPI runs already, of those that are left.
  explicit MpiTransport(bool of_survivors) {
    if (!of_survivors) start_mpi();
    check(World::of_process != nullptr, "MPI runs");
    world_ = World::of_process;
    const Deadline deadline =
        until_opened(of_survivors ? "going on without ranks that ended" : "MPI's start");
    try {
      guarded([&] {
        if (of_survivors) world_->leave_out_the_lost();
        MPI_Comm_set_errhandler(world_->all, MPI_ERRORS_RETURN);
        if (!of_survivors) introduce();
        world_->last_words = apart(world_->all);
        find_place();
      });
    } catch (const RanksLost&) {
      revoke(world_->all);  // so that the others meet it too
      throw;
    }
    decide_whether_to_survive();
  }

  const Place& place() const override { return place_; }
  // Far from 2^31, as counts are ints and some paths inside MPI multiply them; and small enough that messages
  // complete now and then while a long slice travels, which is how the engine sees that something moves.
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

  // Any tag: a message of another collective is an error to report, not one to wait behind for ever.
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

  // Sends that are through for us may still lie in MPI's own queues, which move only inside its calls.
  void progress() override {
    if (lost_) return;
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_->all, &found, MPI_STATUS_IGNORE);
  }

  // Communicators go with the world, and then MPI ends. Where ranks ended before, its last call may wait for
  // them (Open MPI 5.0.11): then the others end as they do behind an error, without that call.
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
      if (may_speak()) {
        log::error(message);
      } else {
        std::this_thread::sleep_for(last_words_patience);  // whoever spoke ends this rank meanwhile
      }
    }
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
    MPI_Request request = MPI_REQUEST_NULL;  ///< of bulk data
    mpi::request control;                    ///< of other lanes
  };

  static void start_mpi() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised)
      throw Error(Problem{.what = "MPI is initialised already", .fix = "make one job a process"});
    try {
      const Deadline deadline = until_started();
      prefer_larger_messages();
      // Open MPI's plugins and shared memory; it does not look either whether it got any.
      require_memory_for("MPI's start", std::size_t{192} << 20);
      World::of_process = new World;
    } catch (const mpi::exception&) {
      throw Error(Problem{
          .what = "MPI_Init_thread failed",
          .fix = "start with mpirun (or srun with PMIx) of the MPI that this program was built with"});
    }
  }

  // Before anything that another version may say otherwise. Ranks that are not alike end together, and MPI
  // with them.
  void introduce() {
    const std::string mine = introduction(program_version(), build_id(), host_name());
    const auto size = static_cast<std::size_t>(world_->all.size());
    std::string all(size * kIntroductionBytes, '\0');
    must(MPI_Allgather(mine.data(), static_cast<int>(kIntroductionBytes), MPI_CHAR, all.data(),
                       static_cast<int>(kIntroductionBytes), MPI_CHAR, world_->all),
         "MPI_Allgather");
    std::vector<std::string> told;
    for (std::size_t r = 0; r < size; ++r)
      told.push_back(all.substr(r * kIntroductionBytes, kIntroductionBytes));
    try {
      require_same_build(told, world_->all.rank());
    } catch (const Error&) {
      finish();
      throw;
    }
  }

  // The thread of the survivors' transport is not the one that started MPI.
  void decide_whether_to_survive() {
    if (least_survivors() == 0) return;
    survives_ = has_ulfm() && any_thread_;
    if (survives_ || place_.rank != 0) return;
    log::warn(
        "OCTETRUN_SURVIVORS: " + mpi_library_version() +
        " lets no rank go on without others (ULFM: Open MPI 5.0 and later): the job ends with a rank, and "
        "has to be started again");
  }

  void require_whole() const {
    if (lost_) throw RanksLost();
  }

  // Boost.MPI says of a request that has failed that it is not through.
  static bool still_under_way(Pending& pending) {
    if (!pending.bulk && !pending.control.active()) return false;
    try {
      return !(pending.bulk ? test_bulk(pending) : test_control(pending));
    } catch (const Error&) {
      return false;
    }
  }

  // Revoked, whatever is under way fails at its next test: then MPI uses no memory of it any more.
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

  // Often several ranks notice the same thing, and an abort takes its time: one of them should be heard, the
  // lowest if it is quick. So each waits longer than those below it, is silent once another has announced its
  // words, and announces its own before it says them.
  bool may_speak() {
    try {
      return is_first_to_speak();
    } catch (const mpi::exception&) {
      return true;  // ranks that have ended say nothing
    }
  }

  bool is_first_to_speak() {
    const auto announced_by = [this](int source) {
      return world_->last_words.iprobe(source, mpi::any_tag).has_value();
    };
    const auto turn = Clock::now() + turn_to_speak * std::min(place_.rank, 8);
    do {
      if (announced_by(mpi::any_source)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (Clock::now() < turn);
    std::vector<mpi::request> announcements;
    for (int peer = 0; peer < place_.size; ++peer) {
      if (peer != place_.rank) announcements.push_back(world_->last_words.isend(peer, 0));
    }
    // What is sent here may still lie in MPI's queues, which move only inside its calls. Where two announced
    // at the same moment, the lower one speaks.
    for (const auto end = Clock::now() + announcement; Clock::now() < end;) {
      for (mpi::request& one : announcements) {
        if (one.active() && one.test()) one = {};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto lower = all_ranks(place_.rank);
    return std::ranges::none_of(lower, announced_by);
  }

  // Ends the job where a rank's MPI allows no thread beside the one that calls it; the lowest of these
  // speaks.
  void require_threads(const std::vector<HostFacts>& ranks) {
    const auto lacking = std::ranges::find_if(ranks, [](const HostFacts& facts) {
      return facts.level < static_cast<int>(mpi::threading::funneled);
    });
    if (lacking == ranks.end() || few_threads_pass) return;
    if (lacking - ranks.begin() == place_.rank) {
      log::error(Error(Problem{.what = "this MPI allows no threads beside it",
                               .expected = "MPI_THREAD_FUNNELED or more",
                               .found = "MPI_THREAD_SINGLE (" + mpi_library_version() + ")",
                               .fix = "use an MPI that is built with thread support"})
                     .what());
    }
    world_->all.barrier();  // nobody ends the job before that was said
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::failure));
  }

  void find_place() {
    place_.rank = world_->all.rank();
    place_.size = world_->all.size();
    place_.host = host_name();
    MPI_Comm mates = MPI_COMM_NULL;
    must(MPI_Comm_split_type(world_->all, MPI_COMM_TYPE_SHARED, place_.rank, MPI_INFO_NULL, &mates),
         "MPI_Comm_split_type");
    const mpi::communicator node(mates, mpi::comm_take_ownership);
    HostFacts mine{.lowest = place_.rank, .level = static_cast<int>(world_->thread_level)};
    any_thread_ = mine.level >= static_cast<int>(mpi::threading::serialized);
    mpi::broadcast(node, mine.lowest, 0);
    std::vector<HostFacts> ranks;
    mpi::all_gather(world_->all, mine, ranks);
    require_threads(ranks);
    std::vector<int> node_of;
    for (const HostFacts& facts : ranks) node_of.push_back(facts.lowest);
    set_nodes(place_, node_of);
  }

  // Ends this process, and so the job, when `what` lasts too long; the lowest rank that waits speaks first.
  static Deadline until_over(const char* what, int rank) {
    const std::chrono::seconds patience = opening_patience();
    return {patience + rank * turn_to_speak, [what, patience] {
              log::error(Error(Problem{.what = std::string(what) + " does not come to its end",
                                       .expected = "all ranks to take part within " +
                                                   std::to_string(patience.count()) + " s",
                                       .fix = "look for a rank that is stopped, or a host that others do not "
                                              "reach; OCTETRUN_START_TIMEOUT names other seconds",
                                       .code = ExitCode::hang})
                             .what());
              _exit(static_cast<int>(ExitCode::hang));
            }};
  }
  Deadline until_opened(const char* what) const { return until_over(what, world_->all.rank()); }
  // Before MPI has told the rank, its launcher has.
  static Deadline until_started() {
    int rank = 0;
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
      if (const char* text = environment_variable(name)) rank = std::atoi(text);
    }
    return until_over("MPI's start", std::clamp(rank, 0, 1 << 10));
  }
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
  bool survives_ = false;   // goes on without ranks that end
  bool lost_ = false;       // some have
  std::vector<bool> bulk_;  // by lane
  std::vector<Pending> pending_;
  std::vector<int> free_;
};

}  // namespace

void let_few_threads_pass() {
  few_threads_pass = true;
}

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
