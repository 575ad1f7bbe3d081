// Sealed messages: only the receiver of a corrupted message reports it.
#include "octet/comm/collectives.h"

#include <gtest/gtest.h>

#include "comm/ranks.h"

namespace octet::comm::seals_test {
namespace {

constexpr std::int64_t kCount = 3000;

/// Runs a reduction, a gather and a sum of integers.
void talk(Collectives& c) {
  Values<float> values = input_of(c.rank(), kCount * c.size(), 1);
  Values<float> sum(kCount), slices = values;
  Values<std::int64_t> numbers(4, 1);
  c.reduce_scatter(c.reduce_stream(),
                   {.name = "sums", .from = values.data(), .to = sum.data(), .count = kCount});
  c.all_gather(c.gather_stream(), {.name = "slices",
                                   .buffer = slices.data(),
                                   .bytes = kCount * static_cast<std::int64_t>(sizeof(float))});
  c.gather_stream().synchronize();
  c.all_reduce_sum(c.reduce_stream(), "numbers", numbers.data(), 4);
  c.reduce_stream().synchronize();
}

TEST(Seals, ABrokenMessageIsToldOfByItsReceiver) {
  for (const int ranks : {2, 4}) {
    run_ranks_as_threads({.ranks = ranks}, [&](Job&, Collectives& c, Device&) {
      Seals* seals = seals_of(c);
      ASSERT_NE(seals, nullptr);
      for (std::uint64_t draw = 0; draw < 12; ++draw) {
        seals->seal(true);
        if (c.rank() == 1) seals->spoil(draw * 0x9E3779B97F4A7C15u);
        for (int i = 0; i < 8; ++i) talk(c);  // as many messages as may pass before the spoiled one
        const std::vector<BrokenMessage> broken = seals->take_broken();
        EXPECT_EQ(broken.size(), c.rank() == 1 ? 1u : 0u)
            << draw;  // the other ranks would wait for a rank that left
        EXPECT_TRUE(seals->take_broken().empty());
        if (broken.empty()) continue;
        EXPECT_EQ(broken[0].to, 1);
        EXPECT_NE(broken[0].from, 1);
        EXPECT_NE(broken[0].name, "");
      }
    });
  }
}

TEST(Seals, ChangeNoValueAndMayBeOnForSome) {
  run_ranks_as_threads({.ranks = 3, .node_of = {0, 0, 1}}, [&](Job&, Collectives& c, Device&) {
    std::vector<Values<float>> results;
    for (const bool on : {false, true, false}) {
      seals_of(c)->seal(on);
      Values<float> values = input_of(c.rank(), kCount * c.size(), 2);
      Values<float>& sum = results.emplace_back(kCount);
      c.reduce_scatter(c.reduce_stream(), {.name = "sums",
                                           .from = values.data(),
                                           .to = sum.data(),
                                           .count = kCount,
                                           .wire = Wire::int8,
                                           .hierarchical = true});
      c.reduce_stream().synchronize();
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
    EXPECT_TRUE(seals_of(c)->take_broken().empty());
    c.channel().barrier();
  });
}

TEST(Seals, CollectivesOfStreamsHaveNone) {
  run_ranks_as_threads({.ranks = 2, .carrier = Carrier::peer},
                       [&](Job&, Collectives& c, Device&) { EXPECT_EQ(seals_of(c), nullptr); });
}

}  // namespace
}  // namespace octet::comm::seals_test
