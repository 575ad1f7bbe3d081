#include "job/last_words.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "octet/base/clock.h"

#include "messages/transport.h"
#include "mpi/mpi_world.h"

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

}  // namespace octet::comm
