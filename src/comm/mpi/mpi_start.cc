#include "mpi/mpi_start.h"

#include <boost/mpi/collectives.hpp>
#include <boost/serialization/string.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "job/same_build.h"
#include "messages/local_transport.h"
#include "messages/transport.h"
#include "mpi/mpi_world.h"
#include "octet/base/build.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/base/timing.h"
#include "octet/comm/libraries.h"

namespace octet::comm {
namespace {

namespace mpi = boost::mpi;

// Time that an announcement gets to arrive.
constexpr auto announcement = std::chrono::milliseconds(50);

bool is_first_to_speak(const mpi::communicator& channel, const Place& place) {
  const auto announced_by = [&](int source) { return channel.iprobe(source, mpi::any_tag).has_value(); };
  const auto turn = Clock::now() + turn_to_speak * std::min(place.rank, 8);
  do {
    if (announced_by(mpi::any_source)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (Clock::now() < turn);
  std::vector<mpi::request> announcements;
  for (int peer = 0; peer < place.size; ++peer) {
    if (peer != place.rank) announcements.push_back(channel.isend(peer, 0));
  }
  // Announcements may still be in MPI's queues, which advance only inside MPI calls. If two ranks announce at
  // the same moment, the lower one prints.
  for (const auto end = Clock::now() + announcement; Clock::now() < end;) {
    for (mpi::request& one : announcements) {
      if (one.active() && one.test()) one = {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto lower = all_ranks(place.rank);
  return std::ranges::none_of(lower, announced_by);
}

}  // namespace

bool may_speak(const mpi::communicator& channel, const Place& place) {
  try {
    return is_first_to_speak(channel, place);
  } catch (const mpi::exception&) {
    return true;  // the other ranks have ended and print nothing
  }
}

namespace {

namespace mpi = boost::mpi;

// Set by the program's main thread before it makes a job.
std::atomic<bool> few_threads_pass = false;

// Maximum time for MPI calls that wait for all other ranks, such as splitting communicators. No collective is
// watched then, and only the end of the process ends such a call.
std::chrono::seconds opening_patience() {
  const char* text = environment_variable("OCTETRUN_START_TIMEOUT");
  const int seconds = text ? std::atoi(text) : 0;
  return std::chrono::seconds(seconds > 0 ? seconds : 600);
}

// Inside a host, Open MPI sends up to 4 KiB eagerly. It sends longer messages after a handshake, in pieces of
// 32 KiB. For short slices, eager sending saves more than its copies cost. User settings take precedence.
void prefer_larger_messages() {
  for (const char* shared_memory : {"vader", "sm"}) {  // of Open MPI 4 and 5
    const std::string name = std::string("OMPI_MCA_btl_") + shared_memory;
    setenv((name + "_eager_limit").c_str(), "16384", 0);
    setenv((name + "_max_send_size").c_str(), "65536", 0);
  }
}

/// Facts that a rank sends to the others before lanes exist.
struct HostFacts {
  int lowest = 0;  ///< lowest rank of its node, which identifies the node
  int level = 0;   ///< thread level that its MPI allows
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& lowest& level;
  }
};

// The launcher has set the rank before MPI reports it.
Deadline until_started() {
  int rank = 0;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (const char* text = environment_variable(name)) rank = std::atoi(text);
  }
  return until_over("MPI's start", std::clamp(rank, 0, 1 << 10));
}

// Ends the job if a rank's MPI supports no threads (MPI_THREAD_SINGLE). The lowest of these ranks prints the
// message.
void require_threads(const World& world, const std::vector<HostFacts>& ranks, int rank) {
  const auto lacking = std::ranges::find_if(
      ranks, [](const HostFacts& facts) { return facts.level < static_cast<int>(mpi::threading::funneled); });
  if (lacking == ranks.end() || few_threads_pass) return;
  if (lacking - ranks.begin() == rank) {
    log::error(Error(Problem{.what = "this MPI does not support threads",
                             .expected = "MPI_THREAD_FUNNELED or more",
                             .found = "MPI_THREAD_SINGLE (" + mpi_library_version() + ")",
                             .fix = "use an MPI that was built with thread support"})
                   .what());
  }
  world.all.barrier();  // no rank ends the job before the message is printed
  EndsItself::allow();
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::failure));
}

}  // namespace

void let_few_threads_pass() {
  few_threads_pass = true;
}

Deadline until_over(const char* what, int rank) {
  const std::chrono::seconds patience = opening_patience();
  return {patience + rank * turn_to_speak, [what, patience] {
            log::error(Error(Problem{.what = std::string(what) + " does not finish",
                                     .expected = "all ranks to take part within " +
                                                 std::to_string(patience.count()) + " s",
                                     .fix = "look for a stopped rank or an unreachable host; "
                                            "OCTETRUN_START_TIMEOUT changes this time",
                                     .code = ExitCode::hang})
                           .what());
            _exit(static_cast<int>(ExitCode::hang));
          }};
}

void start_mpi() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised)
    throw Error(Problem{.what = "MPI is initialised already", .fix = "create only one job in a process"});
  try {
    const Deadline deadline = until_started();
    prefer_larger_messages();
    // Memory for Open MPI's plugins and shared memory. Open MPI does not check its allocations.
    require_memory_for("MPI's start", std::size_t{192} << 20);
    World::of_process = new World;
  } catch (const mpi::exception&) {
    throw Error(
        Problem{.what = "MPI_Init_thread failed",
                .fix = "start with mpirun (or srun with PMIx) of the MPI that this program was built with"});
  }
}

std::vector<std::string> introductions(const World& world) {
  const std::string mine = introduction(program_version(), build_id(), host_name());
  const auto size = static_cast<std::size_t>(world.all.size());
  std::string all(size * kIntroductionBytes, '\0');
  must(MPI_Allgather(mine.data(), static_cast<int>(kIntroductionBytes), MPI_CHAR, all.data(),
                     static_cast<int>(kIntroductionBytes), MPI_CHAR, world.all),
       "MPI_Allgather");
  std::vector<std::string> told;
  for (std::size_t r = 0; r < size; ++r)
    told.push_back(all.substr(r * kIntroductionBytes, kIntroductionBytes));
  return told;
}

Place find_place(const World& world) {
  Place place;
  place.rank = world.all.rank();
  place.size = world.all.size();
  place.host = host_name();
  MPI_Comm of_node = MPI_COMM_NULL;
  must(MPI_Comm_split_type(world.all, MPI_COMM_TYPE_SHARED, place.rank, MPI_INFO_NULL, &of_node),
       "MPI_Comm_split_type");
  const mpi::communicator node(of_node, mpi::comm_take_ownership);
  HostFacts mine{.lowest = place.rank, .level = static_cast<int>(world.thread_level)};
  mpi::broadcast(node, mine.lowest, 0);
  std::vector<HostFacts> ranks;
  mpi::all_gather(world.all, mine, ranks);
  require_threads(world, ranks, place.rank);
  std::vector<int> node_of;
  for (const HostFacts& facts : ranks) node_of.push_back(facts.lowest);
  set_nodes(place, node_of);
  return place;
}

}  // namespace octet::comm
