#include <cmath>
#include <limits>

#include "store/synthetic.h"

namespace octet::store::stages_test {
namespace {

using namespace synthetic;

Scenario scenario(int stage, bool overlap, const precision::Recipe& recipe) {
  Scenario s;
  s.options.stage = stage;
  s.options.overlap = overlap;
  s.options.recipe = recipe;
  s.options.adamw.weight_decay = 0.1;
  return s;
}

struct Case {
  const char* name;
  precision::Recipe recipe;
};
const Case kCases[] = {
    {"fp32", recipe(precision::RecipeKind::none, DType::f32)},
    {"bf16", recipe(precision::RecipeKind::none, DType::bf16)},
    {"fp8 delayed", recipe(precision::RecipeKind::delayed, DType::bf16)},
    {"fp8 current", recipe(precision::RecipeKind::current, DType::f32)},
    {"fp8 delayed in parts", recipe(precision::RecipeKind::delayed, DType::bf16, true)},
    {"fp8 current in parts", recipe(precision::RecipeKind::current, DType::f32, true)},
};

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(difference(a.state, b.state), "") << what;
  EXPECT_EQ(difference(a.gradients, b.gradients), "") << what;
  ASSERT_EQ(a.results.size(), b.results.size());
  for (std::size_t i = 0; i < a.results.size(); ++i) {
    EXPECT_EQ(a.results[i].grad_norm, b.results[i].grad_norm) << what;
    EXPECT_EQ(a.results[i].loss_sum, b.results[i].loss_sum) << what;
    EXPECT_EQ(a.results[i].label_tokens, b.results[i].label_tokens) << what;
  }
  for (const std::int64_t hash : b.copies) EXPECT_EQ(hash, a.copies[0]) << what;
  for (const std::int64_t hash : b.scales) EXPECT_EQ(hash, a.scales[0]) << what;
}

TEST(Zero, EveryStageGivesTheSameBitsWithOverlapOrWithout) {
  for (const Case& c : kCases) {
    for (const int ranks : {1, 2, 3, 4}) {
      const Outcome reference = run({.ranks = ranks}, scenario(0, false, c.recipe));
      for (const int stage : {0, 1, 2, 3}) {
        for (const bool overlap : {false, true}) {
          expect_same(reference, run({.ranks = ranks}, scenario(stage, overlap, c.recipe)),
                      std::string(c.name) + ", " + std::to_string(ranks) + " ranks, stage " +
                          std::to_string(stage) + (overlap ? ", overlap" : ""));
        }
      }
    }
  }
}

TEST(Zero, EveryPartOfAFusedMatrixHasTheScaleOfItsOwnLargestElement) {
  for (const int stage : {0, 3}) {
    Scenario s = scenario(stage, true, recipe(precision::RecipeKind::current, DType::f32, true));
    s.steps = 1;
    on_threads({.ranks = 2}, s, [](Rank& rank) {
      rank.initialise();
      rank.steps(0, 1);
      const auto& parameters = rank.store().acquire(1, model::Pass::forward, rank.compute());
      rank.compute().synchronize();
      const auto runs = parameters.operands(0, 0);
      ASSERT_EQ(runs.size(), 3u) << "q, k and v";
      EXPECT_EQ(parameters(0, 0).data, nullptr) << "there is no scale for the whole";
      EXPECT_EQ(runs[0].rows, 24);
      EXPECT_EQ(runs[1].rows, 8);
      EXPECT_EQ(runs[2].rows, 8);
      for (const ops::Operand& w : runs) {
        int most = 0;
        for (std::int64_t i = 0; i < w.rows * w.cols; ++i) {
          most = std::max(most, static_cast<const std::uint8_t*>(w.data)[i] & 0x7F);
        }
        EXPECT_EQ(from_fp8(static_cast<std::uint8_t>(most), DType::e4m3), 448.0f) << w.rows << " rows";
      }
      EXPECT_EQ(parameters.operands(0, 1).size(), 1u) << "a matrix of one tensor has one scale";
      rank.store().release(1, model::Pass::forward, rank.compute());
    });
  }
}

TEST(Zero, AComputeWorkerSeesNoLateReadAndNoEarlyReuse) {
  for (const Case& c : kCases) {
    const Outcome reference = run({.ranks = 3}, scenario(0, false, c.recipe));
    for (const int stage : {0, 1, 2, 3}) {
      expect_same(reference, run({.ranks = 3, .compute_worker = true}, scenario(stage, true, c.recipe)),
                  std::string(c.name) + ", stage " + std::to_string(stage));
    }
  }
}

TEST(Zero, ManyRanksAgreeWithOneThatTakesAllMicroBatches) {
  Scenario alone = scenario(0, true, kCases[0].recipe);
  alone.micro_batches = 12;
  const Outcome one = run({.ranks = 1}, alone);
  for (const int ranks : {2, 3, 4}) {
    for (const bool deterministic : {true, false}) {
      for (const int stage : {0, 1, 2, 3}) {
        Scenario shared = scenario(stage, true, kCases[0].recipe);
        shared.options.deterministic = deterministic;
        shared.micro_batches = 12 / ranks;
        const Outcome many = run({.ranks = ranks}, shared);
        EXPECT_LT(distance(one.state, many.state), 2e-5) << ranks << " " << stage;
        EXPECT_NEAR(one.results.back().loss_sum, many.results.back().loss_sum, 1e-9);
        EXPECT_EQ(one.results.back().label_tokens, many.results.back().label_tokens);
        EXPECT_NEAR(one.results.back().grad_norm, many.results.back().grad_norm, 1e-5);
      }
    }
  }
}

TEST(Zero, WithoutDeterminismTheStagesStillAgreeClosely) {
  const Outcome reference = run({.ranks = 3}, scenario(0, true, kCases[0].recipe));
  State first;  // the state of stage 0
  for (const int stage : {0, 1, 2, 3}) {
    Scenario loose = scenario(stage, true, kCases[0].recipe);
    loose.options.deterministic = false;
    const Outcome a = run({.ranks = 3}, loose);
    loose.options.overlap = false;
    expect_same(a, run({.ranks = 3}, loose), "overlap");
    // fp32 sums in another order differ in the last bits, for gradients below 10 and weights below 1.
    EXPECT_LT(distance(reference.gradients, a.gradients), 4e-6) << "stage " << stage;
    EXPECT_LT(distance(reference.state, a.state), 2e-6) << "stage " << stage;
    for (std::size_t i = 0; i < a.results.size(); ++i) {
      EXPECT_NEAR(a.results[i].grad_norm / reference.results[i].grad_norm, 1, 1e-6) << "stage " << stage;
      EXPECT_EQ(a.results[i].loss_sum, reference.results[i].loss_sum);
      EXPECT_EQ(a.results[i].label_tokens, reference.results[i].label_tokens);
    }
    // Stages 2 and 3 reduce every micro-batch in any case. Stages 0 and 1 reduce the sum of all.
    if (stage == 0) first = a.state;
    EXPECT_EQ(difference(stage < 2 ? first : reference.state, a.state), "") << "stage " << stage;
  }
}

TEST(Zero, ARankWithoutTokensTakesPart) {
  for (const Case& c : kCases) {
    Outcome reference;
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool deterministic : {true, false}) {
        Scenario s = scenario(stage, true, c.recipe);
        s.options.deterministic = deterministic;
        // Rank 2 never has tokens, rank 1 has none in its last micro-batch, rank 0 none in its first.
        s.idle = [](int, int m, int rank) {
          return rank == 2 || (rank == 1 && m == 1) || (rank == 0 && m == 0);
        };
        const Outcome o = run({.ranks = 3}, s);
        if (stage == 0 && deterministic) reference = o;
        if (deterministic) expect_same(reference, o, std::string(c.name) + std::to_string(stage));
        EXPECT_LT(distance(reference.state, o.state),
                  c.recipe.compute == DType::f32 && !c.recipe.fp8() ? 2e-5 : 5e-2);
        EXPECT_EQ(o.results[0].label_tokens, label_tokens(1) + label_tokens(3));
      }
    }
  }
}

TEST(Zero, AStepThatIsNotFiniteLeavesEverythingAsItIs) {
  for (const Case& c : kCases) {
    for (const int ranks : {1, 3}) {
      for (const int stage : {0, 1, 3}) {
        Scenario s = scenario(stage, true, c.recipe);
        s.steps = 2;
        const Outcome before = run({.ranks = ranks}, s);
        s.steps = 3;
        s.gradient_scale = [](int step) { return step == 2 ? std::numeric_limits<float>::infinity() : 1.0f; };
        const Outcome after = run({.ranks = ranks}, s);
        EXPECT_EQ(difference(before.state, after.state), "") << c.name << " " << ranks << " " << stage;
        EXPECT_EQ(before.copies, after.copies) << c.name;
        EXPECT_TRUE(after.results[2].skipped);
        EXPECT_FALSE(std::isfinite(after.results[2].grad_norm));
        EXPECT_FALSE(after.results[1].skipped);
        EXPECT_EQ(after.optimizer_steps, 2);
      }
    }
  }
}

TEST(Zero, AStepWithoutLabelTokensIsSkipped) {
  Scenario s = scenario(1, true, kCases[0].recipe);
  s.idle = [](int step, int, int) { return step == 1; };
  const Outcome o = run({.ranks = 2}, s);
  EXPECT_FALSE(o.results[0].skipped);
  EXPECT_TRUE(o.results[1].skipped);
  EXPECT_FALSE(o.results[2].skipped);
  EXPECT_EQ(o.optimizer_steps, 2);
}

TEST(Zero, WhatIsInUseIsNotGatheredOver) {
  // All blocks share two buffers alternately. While a block is held, the block after the next is not gathered
  // into its buffer.
  on_threads({.ranks = 2}, scenario(3, true, kCases[0].recipe), [](Rank& rank) {
    rank.initialise();
    ParameterStore& store = rank.store();
    const auto element = [&](const model::GroupParameters& p) {
      rank.compute().synchronize();
      return static_cast<const float*>(p.operands(0, 0).front().data)[5];
    };
    const model::GroupParameters& first = store.acquire(1, model::Pass::forward, rank.compute());
    const float before = element(first);
    store.acquire(2, model::Pass::forward, rank.compute());
    store.synchronize(rank.compute());
    EXPECT_EQ(element(first), before);
    store.release(2, model::Pass::forward, rank.compute());
    store.release(1, model::Pass::forward, rank.compute());
    const float third = element(store.acquire(3, model::Pass::forward, rank.compute()));
    EXPECT_NE(third, before) << "the third block lies where the first one lay";
    store.release(3, model::Pass::forward, rank.compute());
  });
}

}  // namespace
}  // namespace octet::store::stages_test
