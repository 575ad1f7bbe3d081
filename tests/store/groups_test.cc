// Sharding groups: state is sharded inside groups of ranks, and every group holds a replica.
#include "octet/store/step_messages.h"
#include "store/synthetic.h"

namespace octet::store::groups_test {
namespace {

using namespace synthetic;

Scenario scenario(int stage, int group, bool overlap = true) {
  Scenario s;
  s.options.stage = stage;
  s.options.group = group;
  s.options.overlap = overlap;
  s.options.adamw.weight_decay = 0.1;
  s.options.max_grad_norm = 0.5;
  return s;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(difference(a.state, b.state), "") << what;
  EXPECT_EQ(difference(a.gradients, b.gradients), "") << what;
  ASSERT_EQ(a.results.size(), b.results.size());
  for (std::size_t i = 0; i < a.results.size(); ++i) {
    EXPECT_EQ(a.results[i].grad_norm, b.results[i].grad_norm) << what;
    EXPECT_EQ(a.results[i].loss_sum, b.results[i].loss_sum) << what;
  }
}

/// Runs all stages with groups of two of four ranks.
void expect_equal_stages(const precision::Recipe& recipe) {
  const auto with = [&](int stage, bool overlap, bool worker) {
    Scenario s = scenario(stage, 2, overlap);
    s.options.recipe = recipe;
    return run({.ranks = 4, .compute_worker = worker}, s);
  };
  const Outcome reference = with(1, false, false);
  for (const std::int64_t hash : reference.copies) EXPECT_EQ(hash, reference.copies[0]);
  for (const int stage : {1, 2, 3}) {
    const Outcome o = with(stage, true, stage == 3);
    expect_same(reference, o, "stage " + std::to_string(stage));
    EXPECT_EQ(reference.copies, o.copies) << stage;
    EXPECT_EQ(reference.scales, o.scales) << stage;
  }
}

TEST(ShardGroups, AllStagesGiveTheSameBitsWithOneGroupSize) {
  expect_equal_stages(recipe(precision::RecipeKind::delayed, DType::bf16));
}

TEST(WholeShardGroups, AllStagesGiveTheSameBitsWithEveryRecipe) {
  expect_equal_stages(recipe(precision::RecipeKind::none, DType::f32));
  expect_equal_stages(recipe(precision::RecipeKind::current, DType::bf16, true));
}

void expect_agreement(int ranks, const std::vector<int>& stages, const std::vector<int>& sizes) {
  for (const bool deterministic : {true, false}) {
    for (const int stage : stages) {
      const auto with = [&](int group) {
        Scenario s = scenario(stage, group);
        s.options.deterministic = deterministic;
        return run({.ranks = ranks}, s);
      };
      const Outcome whole = with(0);
      expect_same(whole, with(ranks), "a group of all ranks");
      for (const int group : sizes) {
        const Outcome o = with(group);
        EXPECT_LT(distance(whole.state, o.state), 2e-5) << group << " at stage " << stage;
        EXPECT_LT(distance(whole.gradients, o.gradients), 2e-5) << group << " at stage " << stage;
        for (std::size_t i = 0; i < whole.results.size(); ++i)
          EXPECT_NEAR(whole.results[i].grad_norm, o.results[i].grad_norm, 1e-5) << "counted once";
      }
      if (!deterministic) continue;
      EXPECT_NE(difference(whole.gradients, with(2).gradients), "") << "another order";
    }
  }
}

TEST(ShardGroups, AGroupSizeAgreesWithOneGroup) {
  expect_agreement(4, {2}, {2});
}

TEST(WholeShardGroups, EveryGroupSizeAgreesWithOneGroup) {
  expect_agreement(6, {1, 2, 3}, {1, 2, 3});
}

TEST(ShardGroups, AGroupOfOneRankIsStageZero) {
  Scenario zero = scenario(0, 0);
  expect_same(run({.ranks = 4}, zero), run({.ranks = 4}, scenario(3, 1)), "one rank");
}

Scenario strict(int stage, int group, int micro_batches) {
  Scenario s = scenario(stage, group);
  s.options.strict = true;
  s.micro_batches = micro_batches;
  return s;
}

TEST(ShardGroups, StrictGivesTheBitsOfOneRank) {
  const Outcome reference = run({.ranks = 1}, strict(0, 0, 8));
  for (const int group : {1, 2, 4})
    expect_same(reference, run({.ranks = 4}, strict(3, group, 2)), "groups of " + std::to_string(group));
  // Four groups: the tree differs from the order of the groups.
  expect_same(reference, run({.ranks = 8}, strict(2, 2, 1)), "four groups");
  // Three groups of two ranks: the tree of six leaves has an incomplete right half.
  expect_same(run({.ranks = 1}, strict(0, 0, 6)), run({.ranks = 6}, strict(2, 2, 1)), "three groups");
}

TEST(WholeShardGroups, StrictGivesTheSameBitsAtEveryGroupSize) {
  for (const int each : {1, 2, 4}) {
    Scenario alone = strict(0, 0, 8 * each);
    alone.steps = 20;
    const Outcome reference = run({.ranks = 1}, alone);
    for (const int stage : {1, 2, 3}) {
      for (const int group : {1, 2, 4, 8}) {
        Scenario s = strict(stage, group, each);
        s.steps = 20;
        expect_same(reference, run({.ranks = 8}, s),
                    "groups of " + std::to_string(group) + " at stage " + std::to_string(stage));
      }
    }
  }
}

TEST(ShardGroups, NarrowWiresKeepReplicasEqual) {
  for (const comm::Wire wire : {comm::Wire::bf16, comm::Wire::fp8, comm::Wire::int8}) {
    const auto with = [&](int stage, bool overlap) {
      Scenario s = scenario(stage, 2, overlap);
      s.options.wire = wire;
      s.options.recipe.compute = DType::bf16;
      return run({.ranks = 4, .node_of = {0, 0, 1, 1}}, s);
    };
    Scenario exact = scenario(1, 2);
    exact.options.recipe.compute = DType::bf16;
    const Outcome reference = with(1, false);
    EXPECT_GT(distance(reference.gradients, run({.ranks = 4}, exact).gradients), 1e-4) << "the wire rounds";
    for (const std::int64_t hash : reference.copies) EXPECT_EQ(hash, reference.copies[0]);
    for (const int stage : {2, 3}) expect_same(reference, with(stage, true), std::to_string(stage));
  }
}

TEST(ShardGroups, StateMovesBetweenGroupSizesAndRanks) {
  const Outcome saved = run({.ranks = 4}, scenario(3, 2));
  for (const auto& [ranks, stage, group] :
       std::vector<std::array<int, 3>>{{1, 0, 0}, {2, 2, 0}, {4, 3, 4}, {4, 1, 1}, {6, 2, 3}, {8, 3, 2}}) {
    const Outcome loaded =
        on_threads({.ranks = ranks}, scenario(stage, group), [&](Rank& rank) { rank.load(saved.state); });
    EXPECT_EQ(difference(saved.state, loaded.state), "") << ranks << " ranks, groups of " << group;
  }
}

TEST(ShardGroups, MemoryAndMessagesFollowTheGroup) {
  struct Found {
    std::size_t state = 0;
    std::int64_t between = 0;
  };
  const auto found = [](int stage, int group) {
    Found f;
    const Scenario s = scenario(stage, group);
    comm::run_ranks_as_threads(
        {.ranks = 4, .node_of = {0, 0, 1, 1}}, [&](comm::Job& job, comm::Collectives& all, Device& device) {
          const ThreadGroups groups(job, device, s.options, comm::Carrier::messages);
          Rank rank(all, device, s, groups.axes());
          rank.initialise();
          const auto take = [&] {
            StepMessages sent;
            rank.store().synchronize(rank.compute());
            all.channel().barrier();
            for (comm::Collectives* each : {&all, groups.axes().shards, groups.axes().replicas}) {
              if (each == nullptr) continue;
              for (const comm::Traffic& t : each->take_traffic()) {
                const comm::Sent counted{t.bytes_sent, t.bytes_between_nodes};
                if (t.kind == "reduce_scatter") sent.reduced += counted;
                if (t.kind.starts_with("all_gather")) sent.gathered += counted;
              }
            }
            return sent;
          };
          rank.step(0);  // includes the first gathers of all groups
          take();
          rank.step(1);
          const StepMessages sent = take();
          const StepMessages planned =
              step_messages(rank.store().layout(), s.options, all.place(), s.micro_batches);
          EXPECT_EQ(planned.reduced.bytes, sent.reduced.bytes) << stage << " " << group;
          EXPECT_EQ(planned.reduced.between_nodes, sent.reduced.between_nodes) << stage << " " << group;
          EXPECT_EQ(planned.gathered.bytes, sent.gathered.bytes) << stage << " " << group;
          EXPECT_EQ(planned.gathered.between_nodes, sent.gathered.between_nodes) << stage << " " << group;
          if (job.rank() != 0) return;
          f.between = sent.between_nodes();
          for (const Reservation& one : rank.arena().reservations()) {
            if (one.name.starts_with("optimizer/")) f.state += one.bytes;
          }
        });
    return f;
  };
  for (const int stage : {1, 2, 3}) {
    const Found whole = found(stage, 4), halves = found(stage, 2), single = found(stage, 1);
    EXPECT_EQ(halves.state, 2 * whole.state);
    EXPECT_EQ(single.state, 4 * whole.state);
    if (stage == 1) continue;
    EXPECT_LT(halves.between, whole.between) << "gathers stay inside a node";
  }
}

// GPUs use exchanges and kernels on streams, which these carriers run over host memory.
TEST(ShardGroups, EveryCarrierGivesTheSameBits) {
  for (const comm::Wire wire : {comm::Wire::f32, comm::Wire::fp8}) {
    Scenario s = scenario(3, 2);
    s.options.wire = wire;
    const std::vector<int> nodes{0, 0, 1, 1};
    const Outcome messages = run({.ranks = 4, .node_of = nodes}, s);
    expect_same(messages, run({.ranks = 4, .node_of = nodes, .carrier = comm::Carrier::host}, s), "host");
    if (wire != comm::Wire::f32) continue;  // peers share a host, and wires are for several hosts
    expect_same(run({.ranks = 4}, s), run({.ranks = 4, .carrier = comm::Carrier::peer}, s), "peer");
  }
}

TEST(ShardGroups, OffloadedStatesAndFrozenWeightsFollowTheGroup) {
  const auto with = [](int group, Home home) {
    Scenario s = scenario(3, group);
    s.options.recipe.compute = DType::bf16;
    s.options.state_home = home;
    s.frozen = [](const model::SegmentSpec& spec) { return spec.name == "layers.2 matrices"; };
    return run({.ranks = 4, .stands_for = DeviceKind::cuda}, s);
  };
  const Outcome away = with(2, Home::pinned);
  expect_same(with(2, Home::device), away, "pinned");
  EXPECT_LT(distance(with(0, Home::device).state, away.state), 5e-2);
}

TEST(ShardGroups, AStepThatIsSkippedChangesNothing) {
  Scenario s = scenario(2, 2);
  s.steps = 2;
  const Outcome before = run({.ranks = 4}, s);
  s.steps = 3;
  s.gradient_scale = [](int step) { return step == 2 ? std::numeric_limits<float>::infinity() : 1.0f; };
  const Outcome after = run({.ranks = 4}, s);
  EXPECT_EQ(difference(before.state, after.state), "");
  EXPECT_TRUE(after.results[2].skipped);
}

}  // namespace
}  // namespace octet::store::groups_test
