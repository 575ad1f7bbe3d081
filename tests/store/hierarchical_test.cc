// Stages and overlap with hierarchical reductions and gathers.
#include "store/synthetic.h"

namespace octet::store::by_node_test {
namespace {

using namespace synthetic;

Scenario scenario(int stage, bool overlap, comm::Wire wire, Hierarchical hierarchical) {
  Scenario s;
  s.options.stage = stage;
  s.options.overlap = overlap;
  s.options.wire = wire;
  s.options.hierarchical = hierarchical;
  s.options.recipe.compute = DType::bf16;
  return s;
}

TEST(Hierarchical, AtOneWireEveryStageThatCutsGivesTheSameBits) {
  // At stage 0, the sums are rounded again when they are gathered, unless the wire is fp32.
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}}) {
    const int ranks = static_cast<int>(nodes.size());
    for (const comm::Wire wire : {comm::Wire::f32, comm::Wire::int8}) {
      const auto run_stage = [&](int stage, bool overlap, bool worker = false) {
        return run({.ranks = ranks, .compute_worker = worker, .node_of = nodes},
                   scenario(stage, overlap, wire, store::Hierarchical::on));
      };
      const Outcome reference = run_stage(1, false);
      for (const int stage : {0, 1, 2, 3}) {
        const Outcome plain = run_stage(stage, false);
        for (const Outcome& o : {run_stage(stage, true), run_stage(stage, true, true)}) {
          EXPECT_EQ(difference(plain.state, o.state), "") << stage << " overlap";
        }
        for (const std::int64_t hash : plain.copies) EXPECT_EQ(hash, plain.copies[0]);
        if (stage > 0 || wire == comm::Wire::f32) {
          EXPECT_EQ(difference(reference.state, plain.state), "")
              << stage << " wire " << static_cast<int>(wire);
        }
      }
    }
  }
}

TEST(Hierarchical, AutomaticMeansNarrowWiresAmongNodesOfSeveralRanks) {
  comm::Place place;
  place.size = 4;
  Options options;
  const auto both = [&](comm::Wire wire) {
    return std::pair{gathers_hierarchically(options, place), reduces_hierarchically(options, place, wire)};
  };
  place.nodes = 2;
  EXPECT_EQ(both(comm::Wire::fp8), std::pair(true, true));
  EXPECT_EQ(both(comm::Wire::f32), std::pair(true, false));
  for (const int nodes : {1, 4}) {
    place.nodes = nodes;
    EXPECT_EQ(both(comm::Wire::fp8), std::pair(false, false));
  }
  options.hierarchical = store::Hierarchical::on;
  for (const int nodes : {1, 2, 4}) {
    place.nodes = nodes;
    EXPECT_TRUE(reduces_hierarchically(options, place, comm::Wire::f32)) << nodes;
    EXPECT_TRUE(reduces_hierarchically(options, place, comm::Wire::fp8)) << nodes;
  }
  options.hierarchical = store::Hierarchical::off;
  place.nodes = 2;
  EXPECT_EQ(both(comm::Wire::fp8), std::pair(false, false));
}

// Values are not compressed inside a node, so on a single node a narrow wire gives the bits of fp32.
TEST(Hierarchical, AskedForOnOneNodeItRoundsNothing) {
  const auto state_of = [&](comm::Wire wire, store::Hierarchical hierarchical) {
    return run({.ranks = 4, .node_of = {0, 0, 0, 0}}, scenario(2, true, wire, hierarchical)).state;
  };
  using enum store::Hierarchical;
  EXPECT_EQ(difference(state_of(comm::Wire::f32, off), state_of(comm::Wire::int8, on)), "");
  EXPECT_NE(difference(state_of(comm::Wire::f32, off), state_of(comm::Wire::int8, off)), "");
}

TEST(Hierarchical, OnlyNarrowReductionsChangeTheirBitsByThemselves) {
  const std::vector<int> nodes{0, 0, 1, 1};
  const auto state_of = [&](comm::Wire wire, store::Hierarchical hierarchical) {
    return run({.ranks = 4, .node_of = nodes}, scenario(2, true, wire, hierarchical)).state;
  };
  using enum store::Hierarchical;
  EXPECT_EQ(difference(state_of(comm::Wire::f32, off), state_of(comm::Wire::f32, automatic)), "");
  EXPECT_NE(difference(state_of(comm::Wire::fp8, off), state_of(comm::Wire::fp8, automatic)), "");
}

}  // namespace
}  // namespace octet::store::by_node_test
