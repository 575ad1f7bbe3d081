#include "messages/serving_pace.h"

#include <algorithm>

namespace octet::comm {
namespace {

using std::chrono::microseconds;

// How long the communication thread polls, yielding its core in between, before it sleeps between polls.
// Messages in flight need a poll within microseconds; a peer that still computes does not.
constexpr auto eager_in_flight = microseconds(1000);
constexpr auto eager_idle = microseconds(100);
// A caller has no other work, and a long message can take this long to complete.
constexpr auto eager_caller = microseconds(20000);
constexpr auto shortest_nap_in_flight = microseconds(50);
constexpr auto longest_nap_in_flight = microseconds(400);
constexpr auto slowest_pace = microseconds(20000);  // compute of a peer is no link delay
constexpr auto shortest_idle_nap = microseconds(100);
constexpr auto longest_waiting_nap = microseconds(200);  // a collective waits for its data to be computed
constexpr auto longest_idle_nap = microseconds(10000);
// If waiting threads serve themselves, the communication thread handles only work that no thread waits for.
constexpr auto shortest_nap_beside_callers = microseconds(1000);
// If compute uses all cores and waits for nothing, a poll takes a core and much of its cache for 50 us or
// more. The kernel moves posted data meanwhile.
constexpr auto shortest_nap_beside_compute = microseconds(500);
constexpr auto longest_nap_beside_compute = microseconds(5000);

}  // namespace

void ServingPace::moved(Clock::time_point now) {
  if (in_flight_) pace_ += (std::min<Clock::duration>(now - last_progress_, slowest_pace) - pace_) / 4;
  last_progress_ = now;
}

microseconds ServingPace::quiet(Clock::time_point now) const {
  return std::chrono::duration_cast<microseconds>(now - last_progress_);
}

// Inside a node, a long wait means that a peer still computes, and its messages then arrive quickly.
bool ServingPace::is_slow_link() const {
  return several_nodes_ && pace_ > eager_in_flight;
}

Clock::duration ServingPace::eagerness(bool caller) const {
  if (!in_flight_ || is_slow_link()) return eager_idle;
  return caller ? eager_caller : eager_in_flight;
}

microseconds ServingPace::nap_beside_compute(microseconds quiet) const {
  const auto pace = std::chrono::duration_cast<microseconds>(pace_);
  return std::clamp(std::max(quiet, pace) / 4, shortest_nap_beside_compute, longest_nap_beside_compute);
}

// Naps grow with the idle time and end when a collective is enqueued. Other events are not announced (an
// event recorded elsewhere, a record after the last collective), so naps stay short.
microseconds ServingPace::nap(microseconds quiet, bool idle, bool beside_callers) const {
  if (in_flight_) return std::clamp(quiet / 16, shortest_nap_in_flight, longest_nap_in_flight);
  return std::clamp(quiet / 16, beside_callers ? shortest_nap_beside_callers : shortest_idle_nap,
                    idle ? longest_idle_nap : longest_waiting_nap);
}

}  // namespace octet::comm
