// Counters of collectives made of exchanges and kernels: seconds on streams, seconds with at least one
// unfinished, and bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.h"
#include "octet/comm/thread_ranks.h"
#include "octet/ops/wire.h"

namespace octet::comm::stopwatch_test {
namespace {

constexpr std::int64_t count = 1000;
constexpr auto delay = std::chrono::milliseconds(200);
constexpr double waited = 0.18;  // lower bound, for the resolution of the timer

class Counted : public testing::TestWithParam<Carrier> {
 protected:
  /// Runs `body` on two ranks; its values hold two slices.
  static void on_two(const std::function<void(Collectives&, Values<float>&)>& body) {
    std::vector<Values<float>> values(2, Values<float>(2 * count, 1.0f));
    run_ranks_as_threads({.ranks = 2, .carrier = GetParam()}, [&](Job&, Collectives& c, Device&) {
      c.take_traffic();
      body(c, values[static_cast<std::size_t>(c.rank())]);
    });
  }
  static Traffic of(const std::vector<Traffic>& traffic, const std::string& kind) {
    for (const Traffic& one : traffic) {
      if (one.kind == kind) return one;
    }
    ADD_FAILURE() << "nothing was counted for " << kind;
    return {};
  }
};
INSTANTIATE_TEST_SUITE_P(Carriers, Counted, testing::Values(Carrier::peer, Carrier::host),
                         [](const auto& test) { return test.param == Carrier::peer ? "peer" : "host"; });

void reduce(Collectives& c, Values<float>& values, Wire wire = Wire::f32) {
  c.reduce_scatter(
      c.reduce_stream(),
      {.from = values.data(), .to = values.data() + c.rank() * count, .count = count, .wire = wire});
}

TEST_P(Counted, WhoWaitsForALateRankIsSoLongInItsCollective) {
  on_two([](Collectives& c, Values<float>& values) {
    c.channel().barrier();
    const double before = c.seconds_busy();
    if (c.rank() == 1) std::this_thread::sleep_for(delay);
    reduce(c, values);
    c.reduce_stream().synchronize();
    const double busy = c.seconds_busy() - before;
    const double seconds = of(c.take_traffic(), "reduce_scatter").seconds;
    EXPECT_NEAR(busy, seconds, 1e-6) << "rank " << c.rank();
    if (c.rank() == 0) {
      EXPECT_GE(seconds, waited);
    }
    c.channel().barrier();
  });
}

TEST_P(Counted, TwoQueuesSideBySideAreBusyOnce) {
  on_two([](Collectives& c, Values<float>& values) {
    Values<float> others(2 * count, 2.0f);
    c.channel().barrier();
    const double before = c.seconds_busy();
    if (c.rank() == 1) std::this_thread::sleep_for(delay);
    reduce(c, values);
    c.all_gather(c.gather_stream(), {.buffer = others.data(), .bytes = count * 4});
    c.reduce_stream().synchronize();
    c.gather_stream().synchronize();
    const double busy = c.seconds_busy() - before;
    const std::vector<Traffic> traffic = c.take_traffic();
    const double reducing = of(traffic, "reduce_scatter").seconds,
                 gathering = of(traffic, "all_gather").seconds;
    EXPECT_GE(busy, std::max(reducing, gathering) - 1e-6);
    EXPECT_LE(busy, reducing + gathering + 1e-6);
    if (c.rank() == 0) {
      EXPECT_GE(std::min(reducing, gathering), waited);
      EXPECT_LE(busy, reducing + gathering - waited + 0.01) << "the time that both waited counts once";
    }
    c.channel().barrier();  // no rank frees memory that others may still read
  });
}

TEST_P(Counted, BytesAreThoseOfTheWire) {
  on_two([](Collectives& c, Values<float>& values) {
    for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
      reduce(c, values, wire);
      c.reduce_stream().synchronize();
      c.all_gather_values(c.gather_stream(), {.buffer = values.data(), .count = count, .wire = wire});
      c.gather_stream().synchronize();
      const std::vector<Traffic> traffic = c.take_traffic();
      const auto expected = static_cast<std::int64_t>(ops::wire_bytes(wire, count));
      for (const char* kind : {"reduce_scatter", "all_gather_values"}) {
        EXPECT_EQ(of(traffic, kind).calls, 1) << kind;
        EXPECT_EQ(of(traffic, kind).bytes_sent, expected) << kind << ", wire " << static_cast<int>(wire);
        EXPECT_EQ(of(traffic, kind).bytes_between_nodes, 0) << kind;
      }
    }
  });
}

TEST_P(Counted, ManyThatNobodyAsksForAreNotLost) {
  on_two([](Collectives& c, Values<float>& values) {
    constexpr int calls = 2500;  // more than the buffer of unread times holds
    c.channel().barrier();
    const double before = c.seconds_busy();
    if (c.rank() == 1) std::this_thread::sleep_for(delay);
    for (int i = 0; i < calls; ++i) c.all_reduce_max(c.reduce_stream(), "", values.data(), 1);
    c.reduce_stream().synchronize();
    const double busy = c.seconds_busy() - before;
    const Traffic traffic = of(c.take_traffic(), "all_reduce_max");
    EXPECT_EQ(traffic.calls, calls);
    EXPECT_GE(busy, c.rank() == 0 ? waited : 0.0);
    EXPECT_NEAR(busy, traffic.seconds, 1e-6 * calls);
  });
}

}  // namespace
}  // namespace octet::comm::stopwatch_test
