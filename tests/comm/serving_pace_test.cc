// Times to poll and to sleep while messages are served.
#include "messages/serving_pace.h"

#include <gtest/gtest.h>

#include <vector>

namespace octet::comm::serving_pace_test {
namespace {

using Microseconds = ServingPace::Microseconds;

/// A pace after messages that took these times, in microseconds. `in_flight`: a collective is under way now.
ServingPace pace_after(const std::vector<int>& messages, bool in_flight, bool several_nodes) {
  ServingPace pace(several_nodes);
  Clock::time_point now(std::chrono::seconds(5));
  pace.begin(now);
  for (const int message : messages) {
    now += Microseconds(message);
    pace.begin_poll();
    pace.found_in_flight();
    pace.moved(now);
  }
  pace.begin_poll();
  if (in_flight) pace.found_in_flight();
  EXPECT_EQ(pace.last_progress(), now);
  EXPECT_EQ(pace.quiet(now + Microseconds(7)), Microseconds(7));
  EXPECT_EQ(pace.in_flight(), in_flight);
  return pace;
}

TEST(ServingPace, PollsLongerWhileMessagesAreUnderWay) {
  const std::vector<int> fast(20, 10), slow(20, 3000);
  struct Row {
    std::vector<int> messages;
    bool in_flight, several_nodes, is_slow;
    int caller, thread;  ///< eagerness in microseconds
  };
  for (const Row& row : std::vector<Row>{
           {{}, false, false, false, 100, 100},
           {fast, false, true, false, 100, 100},
           {{}, true, false, false, 20000, 1000},
           {fast, true, true, false, 20000, 1000},
           {slow, true, false, false, 20000, 1000},  // a peer of the node still computes
           {slow, true, true, true, 100, 100},
           {slow, false, true, true, 100, 100},
           {{4000}, true, true, false, 20000, 1000},  // a quarter of it
           {{4004}, true, true, true, 100, 100},
           {{900000}, true, true, true, 100, 100},
           {{900000, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}, true, true, false, 20000, 1000},
       }) {
    const ServingPace pace = pace_after(row.messages, row.in_flight, row.several_nodes);
    EXPECT_EQ(pace.is_slow_link(), row.is_slow);
    EXPECT_EQ(pace.eagerness(true), Microseconds(row.caller));
    EXPECT_EQ(pace.eagerness(false), Microseconds(row.thread));
  }
}

TEST(ServingPace, CountsOnlyMessagesThatWereUnderWay) {
  ServingPace pace(true);
  Clock::time_point now(std::chrono::seconds(5));
  pace.begin(now);
  for (int i = 0; i < 20; ++i) {
    pace.begin_poll();
    pace.moved(now += Microseconds(5000));
  }
  EXPECT_FALSE(pace.is_slow_link());
}

TEST(ServingPace, SleepsLongerTheLongerNothingMoves) {
  struct Row {
    bool in_flight, idle, beside_callers;
    int quiet, nap;  ///< in microseconds
  };
  for (const Row& row : std::vector<Row>{
           {true, false, false, 0, 50},
           {true, false, false, 3200, 200},
           {true, false, false, 1000000, 400},
           {false, false, false, 0, 100},
           {false, false, false, 1000000, 200},
           {false, true, false, 0, 100},
           {false, true, false, 16000, 1000},
           {false, true, false, 1000000, 10000},
           {false, true, true, 0, 1000},
           {false, true, true, 1000000, 10000},
       }) {
    const ServingPace pace = pace_after({}, row.in_flight, false);
    EXPECT_EQ(pace.nap(Microseconds(row.quiet), row.idle, row.beside_callers), Microseconds(row.nap))
        << row.quiet;
  }
  for (const auto& [quiet, nap] : {std::pair{0, 500}, {4000, 1000}, {1000000, 5000}})
    EXPECT_EQ(pace_after({}, true, true).nap_beside_compute(Microseconds(quiet)), Microseconds(nap));
  const std::vector<int> slow(40, 8000);
  EXPECT_NEAR(static_cast<double>(pace_after(slow, true, true).nap_beside_compute(Microseconds(0)).count()),
              2000, 2)
      << "as long as messages take";
}

}  // namespace
}  // namespace octet::comm::serving_pace_test
