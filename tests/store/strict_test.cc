// Strict determinism: the bits do not depend on the number of ranks that share the micro-batches of a step.
#include <cmath>

#include "../src/store/sum_tree.h"
#include "store/synthetic.h"

namespace octet::store::strict_test {
namespace {

using namespace synthetic;

/// A stack of sums as text, so that the order of additions is visible.
struct Written {
  std::vector<std::string> stack;
  void push(const std::string& sum, int merges) {
    stack.push_back(sum);
    for (int i = 0; i < merges; ++i) {
      const std::string top = stack.back();
      stack.pop_back();
      stack.back() = "(" + stack.back() + "+" + top + ")";
    }
  }
};

/// Returns the tree that the ranks compute together.
std::string tree_of(int world, int micro_batches) {
  std::vector<std::string> left;
  SumTree tree;
  for (int rank = 0; rank < world; ++rank) {
    tree = sum_tree({.rank = rank, .size = world}, micro_batches);
    Written own;
    for (int i = 0; i < micro_batches; ++i) {
      own.push(std::to_string(rank * micro_batches + i), tree.merges[static_cast<std::size_t>(i)]);
      if (i + 1 < micro_batches) {
        EXPECT_LE(own.stack.size(), static_cast<std::size_t>(tree.buffers));
      }
    }
    EXPECT_EQ(static_cast<int>(own.stack.size()), tree.order.parts[static_cast<std::size_t>(rank)]);
    left.insert(left.end(), own.stack.begin(), own.stack.end());
  }
  Written all;
  EXPECT_EQ(left.size(), tree.order.merges.size());
  for (std::size_t i = 0; i < left.size(); ++i) all.push(left[i], tree.order.merges[i]);
  EXPECT_EQ(all.stack.size(), 1u);
  return all.stack.back();
}

TEST(SumTree, HalvesAreAddedWhereverTheRanksAreCut) {
  EXPECT_EQ(tree_of(1, 1), "0");
  EXPECT_EQ(tree_of(1, 5), "(((0+1)+(2+3))+4)");
  EXPECT_EQ(tree_of(1, 8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
  for (int leaves = 1; leaves <= 48; ++leaves) {
    for (int world = 1; world <= leaves; ++world) {
      if (leaves % world != 0) continue;
      EXPECT_EQ(tree_of(world, leaves / world), tree_of(1, leaves));
    }
  }
}

TEST(SumTree, ARankHoldsOneBufferPerLevel) {
  EXPECT_EQ(sum_tree({.rank = 3, .size = 4}, 1).buffers, 0);
  EXPECT_EQ(sum_tree({.rank = 0, .size = 4}, 2).buffers, 1);
  EXPECT_EQ(sum_tree({.rank = 1, .size = 4}, 16).buffers, 4);
  EXPECT_EQ(sum_tree({.rank = 0, .size = 1}, 1024).buffers, 10);
  // If rank boundaries are inside tree nodes, sums at both ends stay on the stack for the neighbours.
  EXPECT_LE(sum_tree({.rank = 0, .size = 7}, 1000).buffers, 20);
}

const precision::Recipe kRecipes[] = {recipe(precision::RecipeKind::none, DType::f32),
                                      recipe(precision::RecipeKind::none, DType::bf16),
                                      recipe(precision::RecipeKind::current, DType::bf16)};

Scenario strict(int stage, bool overlap, const precision::Recipe& recipe) {
  Scenario s;
  s.options.strict = true;
  s.options.stage = stage;
  s.options.overlap = overlap;
  s.options.recipe = recipe;
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
    EXPECT_EQ(a.results[i].label_tokens, b.results[i].label_tokens) << what;
  }
}

TEST(ZeroStrict, AnyNumberOfRanksGivesTheSameBitsAtEveryStage) {
  for (const precision::Recipe& recipe : kRecipes) {
    for (const int leaves : {8, 12}) {
      Scenario alone = strict(0, false, recipe);
      alone.micro_batches = leaves;
      const Outcome reference = run({.ranks = 1}, alone);
      for (const int ranks : {2, 3, 4, 6, 8}) {
        // The first recipe is tested with every distribution of both trees. The others differ only after the
        // sums.
        const bool fewer = &recipe != &kRecipes[0] && (leaves != 8 || ranks == 4);
        if (leaves % ranks != 0 || fewer) continue;
        for (const int stage : {0, 1, 2, 3}) {
          Scenario shared = strict(stage, stage != 1, recipe);
          shared.micro_batches = leaves / ranks;
          expect_same(reference, run({.ranks = ranks, .compute_worker = stage == 3}, shared),
                      std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + ", recipe " +
                          std::to_string(static_cast<int>(recipe.kind)));
        }
      }
    }
  }
}

// The test above would also pass for exact sums. These sums are inexact. One micro-batch per rank is the same
// data.
TEST(ZeroStrict, RankOrderGivesOtherBits) {
  Scenario tree = strict(0, true, kRecipes[0]);
  tree.micro_batches = 1;
  Scenario in_rank_order = tree;
  in_rank_order.options.strict = false;
  const Outcome a = run({.ranks = 8}, tree), b = run({.ranks = 8}, in_rank_order);
  EXPECT_NE(difference(a.gradients, b.gradients), "");
  EXPECT_LT(distance(a.state, b.state), 2e-5);
}

TEST(ZeroStrict, RanksWithoutTokensDoNotMatter) {
  const auto idle = [](int each) {
    return [each](int step, int micro_batch, int rank) {
      const int number = rank * each + micro_batch;
      return number == 0 || number == 5 || (step == 1 && number > 3);
    };
  };
  Scenario alone = strict(0, true, kRecipes[2]);
  alone.micro_batches = 12;
  alone.idle = idle(12);
  const Outcome reference = run({.ranks = 1}, alone);
  for (const int ranks : {2, 4}) {
    for (const int stage : {0, 3}) {
      Scenario shared = strict(stage, true, kRecipes[2]);
      shared.micro_batches = 12 / ranks;
      shared.idle = idle(12 / ranks);
      expect_same(reference, run({.ranks = ranks}, shared), std::to_string(ranks) + " ranks");
    }
  }
}

TEST(ZeroStrict, ItsBuffersAreInThePlan) {
  for (const auto& [world, micro_batches, buffers] : {std::tuple{1, 4, 2}, {2, 1, 0}, {2, 8, 3}, {3, 4, 2}}) {
    std::map<std::string, std::size_t> rows;
    comm::run_ranks_as_threads({.ranks = world},
                               [&](comm::Job&, comm::Collectives& collectives, Device& device) {
                                 Arena arena(device);
                                 Options options = strict(3, true, kRecipes[1]).options;
                                 options.micro_batches = micro_batches;
                                 const ParameterStore store(layout(6), arena, collectives, options);
                                 if (collectives.rank() == 0) {
                                   for (const Reservation& r : arena.reservations()) rows[r.name] += r.bytes;
                                 }
                                 collectives.channel().barrier();
                               });
    std::size_t trained = 0;
    const model::ParameterLayout all = layout(6);
    for (const auto& group : all.groups) {
      for (const auto& s : group.segments) {
        if (s.trainable) trained += static_cast<std::size_t>(model::padded_count(s, world));
      }
    }
    EXPECT_EQ(rows["gradients/tree"], 4 * trained * static_cast<std::size_t>(buffers)) << world;
    if (world > 1) {
      EXPECT_EQ(rows["gradients/sums"], 4 * trained / static_cast<std::size_t>(world));
    }
  }
}

TEST(ZeroStrict, WhatDependsOnTheRanksIsRefused) {
  Options options = strict(1, true, kRecipes[0]).options;
  EXPECT_NO_THROW(policy_of(options, 4));
  options.wire = comm::Wire::bf16;
  EXPECT_THROW(policy_of(options, 1), std::logic_error);
  options.wire = comm::Wire::f32;
  options.gather_wire = comm::Wire::bf16;
  EXPECT_THROW(policy_of(options, 4), std::logic_error);
  options.gather_wire = comm::Wire::f32;
  options.recipe.kind = precision::RecipeKind::delayed;
  EXPECT_THROW(policy_of(options, 4), std::logic_error);
}

}  // namespace
}  // namespace octet::store::strict_test
