// Reported communication times with a link of known speed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "octet/comm/thread_ranks.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"

namespace octet::comm::exposed_test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Upper bound for the wake-up delay of a thread on a busy machine. It must be below all time differences that
// the tests distinguish. With compute during half of a collective, the exposed time differs by this much from
// zero and from the whole.
constexpr double kLate = 0.25;

TEST(Exposed, IsWhatTheLinkTakesLessWhatIsComputedMeanwhile) {
  constexpr std::int64_t count = 160000;
  constexpr double link = 1e6, takes = count * 4 / link;  // 0.64 s
  static_assert(takes / 2 > kLate);
  for (const double computes : {0.0, takes / 2, 1.4 * takes}) {
    for (const bool worker : {false, true}) {
      run_ranks_as_threads(
          {.ranks = 2, .compute_worker = worker, .bytes_per_second = link},
          [&](Job&, Collectives& c, Device& device) {
            const auto compute = device.make_stream({.name = "compute"});
            const auto written = device.make_event(), reduced = device.make_event();
            std::vector<float> values(2 * count, 1.0f), sum(count);
            c.channel().barrier();
            const double busy_before = c.seconds_busy();
            compute->record(*written);
            c.reduce_stream().wait(*written);
            c.reduce_scatter(c.reduce_stream(), {.from = values.data(), .to = sum.data(), .count = count});
            c.reduce_stream().record(*reduced);
            double slept = 0;
            cpu::enqueue(*compute, [&] {
              const auto start = Clock::now();
              std::this_thread::sleep_for(std::chrono::duration<double>(computes));
              slept = seconds_since(start);
            });
            compute->wait(*reduced);
            compute->synchronize();
            const double busy = c.seconds_busy() - busy_before, exposed = seconds_waited(*compute);
            EXPECT_GE(busy, takes);
            EXPECT_NEAR(exposed, std::max(0.0, busy - slept), kLate) << computes;
            const auto traffic = c.take_traffic();
            const auto found = std::ranges::find(traffic, "reduce_scatter", &Traffic::kind);
            ASSERT_NE(found, traffic.end());
            EXPECT_NEAR(found->seconds, busy, kLate);
            EXPECT_EQ(found->bytes_sent, count * 4);
          });
    }
  }
}

TEST(Exposed, CollectivesSideBySideCountOnce) {
  constexpr std::int64_t count = 50000;
  constexpr double link = 1e6;  // both queues share it: 0.2 s each
  run_ranks_as_threads({.ranks = 2, .bytes_per_second = link}, [&](Job&, Collectives& c, Device&) {
    std::vector<float> values(2 * count, 1.0f), gathered(2 * count), sum(count);
    c.channel().barrier();
    const double before = c.seconds_busy();
    c.reduce_scatter(c.reduce_stream(), {.from = values.data(), .to = sum.data(), .count = count});
    c.all_gather(c.gather_stream(), {.buffer = gathered.data(), .bytes = count * 4});
    c.reduce_stream().synchronize();
    c.gather_stream().synchronize();
    const double busy = c.seconds_busy() - before;
    double each = 0;
    for (const Traffic& t : c.take_traffic()) each += t.seconds;
    EXPECT_GE(busy, 0.4);
    EXPECT_LE(busy, 0.4 + kLate);
    EXPECT_GT(each, busy + 0.05);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(c.seconds_busy() - before, busy) << "an idle communicator is not busy";
  });
}

}  // namespace
}  // namespace octet::comm::exposed_test
