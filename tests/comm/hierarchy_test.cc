// Hierarchical collectives, on simulated nodes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "comm/ranks.h"
#include "octet/comm/thread_ranks.h"

namespace octet::comm::hierarchy_test {
namespace {

using Nodes = std::vector<int>;

std::string text_of(const Nodes& nodes) {
  std::string text;
  for (const int node : nodes) text += std::to_string(node);
  return text;
}

// Even and uneven nodes, with ranks assigned block-wise and in turn.
const Nodes kTopologies[] = {{0, 0, 1, 1},
                             {0, 1, 0, 1},
                             {0, 0, 0, 1},
                             {0, 0, 1},
                             {7, 3, 3, 5, 5, 5},
                             {0, 0, 0, 0, 1, 1, 2},
                             {0, 0, 1, 1, 2, 2, 3, 3}};

void on_nodes(const Nodes& nodes, const std::function<void(Collectives&)>& body) {
  run_ranks_as_threads({.ranks = static_cast<int>(nodes.size()), .node_of = nodes},
                       [&](Job&, Collectives& c, Device&) { body(c); });
}

/// Returns the sums of each node's ranks in rank order. Nodes are in the order of their lowest ranks.
std::vector<Values<float>> node_sums(const Nodes& nodes, std::int64_t elements, std::uint64_t seed) {
  std::vector<int> order;
  std::vector<Values<float>> sums;
  for (int rank = 0; rank < static_cast<int>(nodes.size()); ++rank) {
    const auto values = input_of(rank, elements, seed);
    const auto found = std::ranges::find(order, nodes[static_cast<std::size_t>(rank)]);
    if (found == order.end()) {
      order.push_back(nodes[static_cast<std::size_t>(rank)]);
      sums.push_back(values);
      continue;
    }
    auto& sum = sums[static_cast<std::size_t>(found - order.begin())];
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sums;
}

/// Returns the slices of all ranks as one rank per node would reduce them, starting from the nodes' sums.
std::vector<Values<float>> reference(const Nodes& nodes, std::int64_t count, std::uint64_t seed, Wire wire) {
  const auto size = static_cast<std::int64_t>(nodes.size());
  const auto sums = node_sums(nodes, size * count, seed);
  std::vector<Values<float>> slices(nodes.size());
  run_ranks_as_threads({.ranks = static_cast<int>(sums.size())}, [&](Job&, Collectives& c, Device&) {
    const auto& mine = sums[static_cast<std::size_t>(c.rank())];
    for (std::int64_t target = 0; target < size; ++target) {
      Values<float> from(static_cast<std::size_t>(c.size() * count));
      std::copy_n(mine.begin() + target * count, count, from.begin());
      Values<float> to(static_cast<std::size_t>(count));
      c.reduce_scatter(c.reduce_stream(),
                       {.from = from.data(), .to = to.data(), .count = count, .wire = wire});
      c.reduce_stream().synchronize();
      if (c.rank() == 0) slices[static_cast<std::size_t>(target)] = to;
    }
  });
  return slices;
}

TEST(Hierarchy, NodesAreKnownByTheirLowestRanks) {
  on_nodes({7, 3, 3, 5, 5, 5}, [](Collectives& c) {
    const Place& place = c.place();
    EXPECT_EQ(place.nodes, 3);
    EXPECT_EQ(place.node_of, (Nodes{0, 1, 1, 2, 2, 2}));
    EXPECT_EQ(place.node, place.node_of[static_cast<std::size_t>(place.rank)]);
    EXPECT_EQ(place.local_size, place.node + 1);
    EXPECT_EQ(place.local_rank, (Nodes{0, 0, 1, 0, 1, 2})[static_cast<std::size_t>(place.rank)]);
  });
}

TEST(Hierarchy, NodesAreSummedInFullPrecisionAndThenInTheWiresFormat) {
  for (const Nodes& nodes : kTopologies) {
    for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
      for (const std::int64_t count : slice_sizes(static_cast<int>(nodes.size()))) {
        if (count > 5000 && wire != Wire::fp8) continue;
        const auto expected = reference(nodes, count, 3, wire);
        on_nodes(nodes, [&](Collectives& c) {
          auto values = input_of(c.rank(), c.size() * count, 3);
          float* own = values.data() + c.rank() * count;
          Values<float> apart(static_cast<std::size_t>(count), 1.5f);
          Stream& stream = c.reduce_stream();
          c.reduce_scatter(stream, {.name = "apart",
                                    .from = values.data(),
                                    .to = apart.data(),
                                    .count = count,
                                    .accumulate = true,
                                    .wire = wire,
                                    .hierarchical = true});
          c.reduce_scatter(stream, {.name = "in place",
                                    .from = values.data(),
                                    .to = own,
                                    .count = count,
                                    .wire = wire,
                                    .hierarchical = true});
          stream.synchronize();
          const auto& sum = expected[static_cast<std::size_t>(c.rank())];
          const Values<float> here(own, own + count);
          EXPECT_TRUE(same_bits(here, sum))
              << text_of(nodes) << " wire " << static_cast<int>(wire) << " count " << count;
          Values<float> added(sum);
          for (float& x : added) x = 1.5f + x;
          EXPECT_TRUE(same_bits(apart, added))
              << text_of(nodes) << " accumulating, wire " << static_cast<int>(wire) << " count " << count;
        });
      }
    }
  }
}

TEST(Hierarchy, OneNodeRoundsNothingAndARankANodeIsThePlainForm) {
  for (const Nodes& nodes : {Nodes{0, 0, 0}, Nodes{0, 1, 2}}) {
    on_nodes(nodes, [&](Collectives& c) {
      constexpr std::int64_t count = 1000;
      const auto values = input_of(c.rank(), c.size() * count, 5);
      Values<float> hierarchical(count), plain(count);
      const Wire same_as = c.place().nodes == 1 ? Wire::f32 : Wire::fp8;
      Stream& stream = c.reduce_stream();
      c.reduce_scatter(stream, {.from = values.data(),
                                .to = hierarchical.data(),
                                .count = count,
                                .wire = Wire::fp8,
                                .hierarchical = true});
      c.reduce_scatter(stream, {.from = values.data(), .to = plain.data(), .count = count, .wire = same_as});
      stream.synchronize();
      EXPECT_TRUE(same_bits(hierarchical, plain)) << text_of(nodes);
    });
  }
}

TEST(Hierarchy, GathersBringTheSameBytesByWhateverWay) {
  for (const Nodes& nodes : kTopologies) {
    on_nodes(nodes, [&](Collectives& c) {
      const int size = c.size();
      for (const std::int64_t count : slice_sizes(size)) {
        for (const Wire wire : {Wire::f32, Wire::fp8}) {
          Values<float> plain(static_cast<std::size_t>(size * count), -1.0f);
          const auto own = input_of(c.rank(), count, 7);
          std::copy(own.begin(), own.end(), plain.begin() + c.rank() * count);
          auto hierarchical = plain;
          Stream& stream = c.gather_stream();
          c.all_gather_values(stream,
                              {.name = "plain", .buffer = plain.data(), .count = count, .wire = wire});
          c.all_gather_values(stream, {.name = "by node",
                                       .buffer = hierarchical.data(),
                                       .count = count,
                                       .wire = wire,
                                       .hierarchical = true});
          stream.synchronize();
          EXPECT_TRUE(same_bits(plain, hierarchical)) << text_of(nodes) << " " << count;
        }
      }
    });
  }
}

TEST(Hierarchy, BetweenNodesTravelsWhatMustAndNoMore) {
  constexpr std::int64_t count = 1 << 18;
  on_nodes({0, 0, 1, 1}, [](Collectives& c) {
    Values<float> values(4 * count, 1.0f), sum(count);
    Stream& stream = c.reduce_stream();
    const auto crossing = [&](bool hierarchical, bool gather) {
      c.take_traffic();
      if (gather) {
        c.all_gather(stream, {.buffer = values.data(), .bytes = count * 4, .hierarchical = hierarchical});
      } else {
        c.reduce_scatter(stream, {.from = values.data(),
                                  .to = sum.data(),
                                  .count = count,
                                  .wire = Wire::fp8,
                                  .hierarchical = hierarchical});
      }
      stream.synchronize();
      std::int64_t bytes = 0;
      for (const Traffic& t : c.take_traffic()) bytes += t.bytes_between_nodes;
      return bytes;
    };
    const std::int64_t fp8 = count + count / 128 * 4;
    EXPECT_EQ(crossing(false, false), 2 * fp8);
    EXPECT_EQ(crossing(true, false), fp8);
    EXPECT_EQ(crossing(false, true), 2 * count * 4);
    EXPECT_EQ(crossing(true, true), count * 4);
  });
}

TEST(Hierarchy, QueuesDoNotBlockEachOther) {
  on_nodes({0, 0, 1, 1, 1}, [](Collectives& c) {
    constexpr std::int64_t count = 100000;
    Values<float> gathered(static_cast<std::size_t>(5 * count), 1.0f), values(gathered), sum(count);
    for (int round = 0; round < 3; ++round) {
      // Half of the ranks enqueue the reduction first.
      const auto reduce = [&] {
        c.reduce_scatter(c.reduce_stream(), {.from = values.data(),
                                             .to = sum.data(),
                                             .count = count,
                                             .wire = Wire::int8,
                                             .hierarchical = true});
      };
      if (c.rank() % 2 == 0) reduce();
      c.all_gather(c.gather_stream(), {.buffer = gathered.data(), .bytes = count * 4, .hierarchical = true});
      if (c.rank() % 2 == 1) reduce();
      c.gather_stream().synchronize();
      c.reduce_stream().synchronize();
      EXPECT_EQ(sum[count - 1], 5.0f);
    }
  });
}

TEST(Hierarchy, WhatIsNotFiniteIsSeen) {
  on_nodes({0, 0, 1, 1}, [](Collectives& c) {
    constexpr std::int64_t count = 256;
    Values<float> values(4 * count, 1.0f), sum(count);
    if (c.rank() == 3) values[5] = INFINITY;
    c.reduce_scatter(
        c.reduce_stream(),
        {.from = values.data(), .to = sum.data(), .count = count, .wire = Wire::fp8, .hierarchical = true});
    c.reduce_stream().synchronize();
    EXPECT_EQ(std::isfinite(sum[5]), c.rank() != 0);
    EXPECT_EQ(sum[200], 4.0f);
  });
}

}  // namespace
}  // namespace octet::comm::hierarchy_test
