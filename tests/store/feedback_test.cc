// Error feedback in a store: equal bits at every sharded stage, with overlap or without, and after a save and
// a load.
#include <cmath>
#include <limits>

#include "store/synthetic.h"

namespace octet::store::feedback_test {
namespace {

using namespace synthetic;

Scenario scenario(int stage, bool overlap, comm::Wire wire = comm::Wire::fp8, bool feedback = true) {
  Scenario s;
  s.options.stage = stage;
  s.options.overlap = overlap;
  s.options.wire = wire;
  s.options.error_feedback = feedback;
  s.options.recipe.compute = DType::bf16;
  return s;
}

/// Returns the number of nonzero residual elements, or -1 if there are no residuals.
std::int64_t kept(const State& state) {
  std::int64_t tensors = 0, elements = 0;
  for (const auto& [name, values] : state) {
    if (!name.starts_with("residuals/")) continue;
    ++tensors;
    for (const float v : values) elements += v != 0.0f;
  }
  return tensors == 0 ? -1 : elements;
}

TEST(ErrorFeedback, StagesThatCutGiveTheSameBitsWithOverlapOrWithout) {
  for (const std::vector<int>& nodes : {std::vector<int>{}, {0, 0, 1}}) {
    const Outcome reference = run({.ranks = 3, .node_of = nodes}, scenario(1, false));
    const Outcome whole = run({.ranks = 3, .node_of = nodes}, scenario(0, false));
    EXPECT_GT(kept(reference.state), 1000);
    EXPECT_NE(difference(reference.state, whole.state), "") << "stage 0 rounds sums as well";
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool worker : {false, true}) {
        const Outcome o =
            run({.ranks = 3, .compute_worker = worker, .node_of = nodes}, scenario(stage, true));
        EXPECT_EQ(difference(stage == 0 ? whole.state : reference.state, o.state), "") << stage;
        for (const std::int64_t hash : o.copies) EXPECT_EQ(hash, o.copies[0]);
      }
    }
  }
}

TEST(ErrorFeedback, ResumedAtAnotherStageItGoesOnWithTheSameBits) {
  Scenario whole = scenario(1, true);
  whole.steps = 4;
  const Outcome uninterrupted = run({.ranks = 3}, whole);
  whole.steps = 2;
  const Outcome half = run({.ranks = 3}, whole);
  for (const int stage : {1, 2, 3}) {
    const Outcome resumed = on_threads({.ranks = 3}, scenario(stage, true), [&](Rank& rank) {
      rank.load(half.state);
      rank.steps(2, 2);
    });
    EXPECT_EQ(difference(uninterrupted.state, resumed.state), "") << stage;
  }
  // Without the residuals, the resumed run differs.
  State without = half.state;
  for (auto& [name, values] : without) {
    if (name.starts_with("residuals/")) values.assign(values.size(), 0.0f);
  }
  const Outcome resumed = on_threads({.ranks = 3}, scenario(1, true), [&](Rank& rank) {
    rank.load(without);
    rank.steps(2, 2);
  });
  EXPECT_NE(difference(uninterrupted.state, resumed.state), "");
}

TEST(ErrorFeedback, ASkippedStepBeginsAgainAtZero) {
  for (const int stage : {0, 2}) {
    Scenario s = scenario(stage, true);
    s.gradient_scale = [](int step) { return step == 1 ? std::numeric_limits<float>::infinity() : 1.0f; };
    s.steps = 1;
    EXPECT_GT(kept(run({.ranks = 2}, s).state), 1000);
    s.steps = 2;
    const Outcome skipped = run({.ranks = 2}, s);
    EXPECT_TRUE(skipped.results.back().skipped);
    EXPECT_EQ(kept(skipped.state), 0);
    s.steps = 3;
    const Outcome after = run({.ranks = 2}, s);
    EXPECT_FALSE(after.results.back().skipped);
    EXPECT_GT(kept(after.state), 1000);
  }
}

TEST(ErrorFeedback, RowsOfASavedLossAreThoseOfTheRanks) {
  for (const int stage : {1, 3}) {
    for (const int busy : {0, 2}) {
      Scenario s = scenario(stage, true);
      s.steps = 1;
      s.idle = [busy](int, int, int rank) { return rank != busy; };
      const Outcome o = run({.ranks = 3}, s);
      std::int64_t own = 0;
      for (const auto& [name, values] : o.state) {
        if (!name.starts_with("residuals/")) continue;
        const std::size_t row = values.size() / 3;
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (static_cast<int>(i / row) == busy) {
            own += values[i] != 0 ? 1 : 0;
          } else {
            ASSERT_EQ(values[i], 0.0f) << name << ": a rank without tokens lost something";
          }
        }
      }
      EXPECT_GT(own, 1000) << "stage " << stage;
    }
  }
}

// With finite values, the residuals of an earlier step still exist when a step without tokens is skipped.
TEST(ErrorFeedback, AStepWithoutTokensBeginsAgainAtZero) {
  for (const int stage : {0, 1, 3}) {
    Scenario s = scenario(stage, true);
    s.idle = [](int step, int, int) { return step == 1; };
    s.steps = 2;
    const Outcome skipped = run({.ranks = 2}, s);
    EXPECT_TRUE(skipped.results.back().skipped);
    EXPECT_EQ(kept(skipped.state), 0) << "stage " << stage;
  }
}

TEST(ErrorFeedback, ItTakesTwoBytesOfEveryMatrixWhereSomethingIsLost) {
  const auto bytes = [](int ranks, const Scenario& s) {
    std::size_t all = 0;
    comm::run_ranks_as_threads({.ranks = ranks},
                               [&](comm::Job&, comm::Collectives& collectives, Device& device) {
                                 Arena arena(device);
                                 const ParameterStore store(layout(6), arena, collectives, s.options);
                                 if (collectives.rank() != 0) return;
                                 for (const Reservation& r : arena.reservations())
                                   all += r.name == "gradients/residuals" ? r.bytes : 0;
                               });
    return all;
  };
  std::size_t matrices = 0;
  for (const auto& group : layout(6).groups) {
    for (const model::SegmentSpec& s : group.segments) {
      const bool narrow = s.trainable && s.kind == model::ParameterKind::matrix && s.used >= 1024;
      if (narrow) matrices += static_cast<std::size_t>(model::padded_count(s, 2));
    }
  }
  for (const int stage : {0, 1, 2, 3}) EXPECT_EQ(bytes(2, scenario(stage, true)), 2 * matrices) << stage;
  EXPECT_EQ(bytes(1, scenario(0, true)), 0u) << "a lone rank sends nothing";
  EXPECT_EQ(bytes(2, scenario(1, true, comm::Wire::f32)), 0u);
  EXPECT_EQ(bytes(2, scenario(1, true, comm::Wire::fp8, false)), 0u);
  Scenario narrow = scenario(1, true, comm::Wire::bf16);
  EXPECT_EQ(bytes(2, narrow), 2 * matrices);
  narrow.options.storage = {DType::bf16, DType::bf16, DType::bf16};
  EXPECT_EQ(bytes(2, narrow), 0u) << "bf16 gradients travel as they lie";
}

// For every element, the residuals of all ranks add up to the error of the gradient sum. If a residual were
// stored for another slice or rank, one element would have too much and another too little.
TEST(ErrorFeedback, WhatIsKeptIsWhatTheSumsLack) {
  for (const comm::Wire wire : {comm::Wire::fp8, comm::Wire::int8}) {
    for (const int stage : {0, 1, 3}) {
      for (const int micro_batches : {1, 2}) {
        Scenario s = scenario(stage, true, comm::Wire::f32, false);
        s.steps = 1;
        s.micro_batches = micro_batches;
        const Outcome exact = run({.ranks = 3}, s);
        s.options.wire = wire;
        s.options.error_feedback = true;
        const Outcome fed = run({.ranks = 3}, s);
        int tensors = 0;
        for (const auto& [name, sums] : fed.gradients) {
          const auto kept = fed.state.find("residuals/" + name);
          if (kept == fed.state.end()) continue;
          ++tensors;
          ASSERT_EQ(kept->second.size(), 3 * sums.size()) << name;
          for (std::size_t i = 0; i < sums.size(); ++i) {
            double all = 0, size = 0;
            for (std::size_t rank = 0; rank < 3; ++rank) {
              const double one = kept->second[rank * sums.size() + i];
              all += one, size += std::abs(one);
            }
            const double lacks =
                static_cast<double>(exact.gradients.at(name)[i]) - static_cast<double>(sums[i]);
            // Residuals are rounded to bf16 at each reduction, and at stage 0 again in the gather.
            ASSERT_NEAR(all, lacks, 0x1p-8 * (size + 0.04) * (micro_batches + 1) + 2e-6)
                << name << "[" << i << "], stage " << stage << ", wire " << static_cast<int>(wire);
          }
        }
        EXPECT_GT(tensors, 10);
      }
    }
  }
}

// With a constant gradient, the sums of many steps differ by one rounding, not by one rounding per step.
TEST(ErrorFeedback, UpdatesFollowTheUnroundedOnesMoreClosely) {
  Scenario s = scenario(1, true, comm::Wire::f32, false);
  s.steps = 8;
  const Outcome exact = run({.ranks = 2}, s);
  EXPECT_EQ(kept(exact.state), -1);
  s.options.wire = comm::Wire::fp8;
  const Outcome plain = run({.ranks = 2}, s);
  EXPECT_EQ(kept(plain.state), -1);
  s.options.error_feedback = true;
  const Outcome fed = run({.ranks = 2}, s);
  const auto off = [&](const Outcome& o) {
    double squares = 0;
    for (const auto& [name, values] : exact.state) {
      if (!name.starts_with("exp_avg/")) continue;
      for (std::size_t i = 0; i < values.size(); ++i) {
        squares += std::pow(static_cast<double>(o.state.at(name)[i] - values[i]), 2);
      }
    }
    return std::sqrt(squares);
  };
  EXPECT_GT(off(plain), 0);
  EXPECT_LT(off(fed), 0.8 * off(plain));
}

}  // namespace
}  // namespace octet::store::feedback_test
