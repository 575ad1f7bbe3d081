// Errors that a store's hashes detect, at every stage.
#include "octet/store/hashes.h"

#include <mutex>

#include "store/synthetic.h"

namespace octet::store::hashes_test {
namespace {

using namespace synthetic;

/// Runs `look` on every rank after two steps.
void behind_steps(int stage, const precision::Recipe& recipe,
                  const std::function<void(Rank&, Hashes&, comm::Collectives&)>& look,
                  const std::function<bool(const model::SegmentSpec&)>& frozen = {}) {
  Scenario s;
  s.options.stage = stage;
  s.options.recipe = recipe;
  if (frozen) s.frozen = frozen;
  comm::run_ranks_as_threads({.ranks = 3}, [&](comm::Job&, comm::Collectives& c, Device& device) {
    Arena arena(device);
    Rank rank(c, device, s);
    rank.initialise();
    Hashes hashes(rank.store(), arena);
    rank.steps(0, 2);
    look(rank, hashes, c);
    c.channel().barrier();
  });
}

const precision::Recipe kBf16{.compute = DType::bf16};

std::vector<std::int64_t> of_ranks(comm::Collectives& c, const ops::Hash& hash) {
  return c.channel().all_gather_int(static_cast<std::int64_t>(hash.first));
}

TEST(Hashes, WhatEveryRankHoldsIsTheSameOnAll) {
  for (int stage = 0; stage < 4; ++stage) {
    for (const precision::Recipe& recipe : {precision::Recipe{.compute = DType::f32}, kBf16,
                                            synthetic::recipe(precision::RecipeKind::delayed, DType::bf16)}) {
      behind_steps(stage, recipe, [&](Rank& rank, Hashes& hashes, comm::Collectives& c) {
        const StateHashes found = hashes.state(rank.compute());
        for (const ops::Hash& hash : found.replicas) {
          for (const std::int64_t other : of_ranks(c, hash))
            EXPECT_EQ(other, static_cast<std::int64_t>(hash.first)) << stage;
        }
        const auto replica = [&](Held kind) {
          return found.replicas[static_cast<std::size_t>(kind)] != ops::Hash{};
        };
        const auto own = [&](Held kind) { return found.own[static_cast<std::size_t>(kind)] != ops::Hash{}; };
        EXPECT_EQ(replica(Held::moments), stage == 0);
        EXPECT_EQ(own(Held::moments), stage > 0);
        EXPECT_EQ(replica(Held::parameters), stage < 3 || recipe.fp8()) << "scales are replicas at stage 3";
        EXPECT_EQ(replica(Held::frozen), stage < 3);
        EXPECT_EQ(hashes.state(rank.compute()), found) << "nothing has changed";
      });
    }
  }
}

TEST(Hashes, AStepChangesThemAndAPassOfReadingDoesNot) {
  for (const int stage : {0, 1, 3}) {
    behind_steps(stage, kBf16, [&](Rank& rank, Hashes& hashes, comm::Collectives&) {
      const StateHashes before = hashes.state(rank.compute());
      rank.store().pass_by(rank.compute());
      EXPECT_EQ(hashes.state(rank.compute()), before);
      rank.step(2);
      EXPECT_NE(hashes.state(rank.compute()), before);
    });
  }
}

TEST(Hashes, ABitOfOneRankChangesThatKindAndNoOther) {
  for (int stage = 0; stage < 4; ++stage) {
    behind_steps(stage, kBf16, [&](Rank& rank, Hashes& hashes, comm::Collectives&) {
      for (const Held kind : {Held::parameters, Held::masters, Held::moments, Held::frozen}) {
        for (std::uint64_t draw = 0; draw < 5; ++draw) {
          const StateHashes before = hashes.state(rank.compute());
          const std::uint64_t place = draw * 0x9E3779B97F4A7C15u;
          const bool any = !hashes.flip(kind, place, rank.compute()).empty();
          const StateHashes after = hashes.state(rank.compute());
          for (std::size_t k = 0; k < kHeldKinds; ++k) {
            const bool same = before.replicas[k] == after.replicas[k] && before.own[k] == after.own[k];
            EXPECT_EQ(same, !any || k != static_cast<std::size_t>(kind)) << stage << ": " << name_of(kind);
          }
          hashes.flip(kind, place, rank.compute());
          EXPECT_EQ(hashes.state(rank.compute()), before) << "turned back";
        }
      }
    });
  }
}

TEST(Hashes, EveryElementOfACheckpointIsInThem) {
  for (const int stage : {0, 1, 3}) {
    for (const DType moments : {DType::f32, DType::u8}) {
      Scenario s;
      s.options.stage = stage;
      s.options.recipe = synthetic::recipe(precision::RecipeKind::delayed, DType::bf16);
      s.options.storage.moments = moments;
      comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job&, comm::Collectives& c, Device& device) {
        Arena arena(device);
        Rank rank(c, device, s);
        rank.initialise();
        Hashes hashes(rank.store(), arena);
        rank.steps(0, 2);
        rank.store().synchronize(rank.compute());
        const StateHashes before = hashes.state(rank.compute());
        for (const TensorSlice& slice : rank.store().owned_slices()) {
          if (slice.count == 0 || slice.name == "optimizer/step") continue;
          for (const std::int64_t at : {std::int64_t{0}, slice.count - 1}) {
            auto* byte =
                static_cast<std::uint8_t*>(slice.data) + at * static_cast<std::int64_t>(size_of(slice.dtype));
            *byte ^= 0x10;
            EXPECT_NE(hashes.state(rank.compute()), before) << slice.name << " at stage " << stage;
            *byte ^= 0x10;
          }
        }
        EXPECT_EQ(hashes.state(rank.compute()), before);
        c.channel().barrier();
      });
    }
  }
}

TEST(Hashes, SumsOfGradientsAreThereWhereEveryRankHasThem) {
  for (int stage = 0; stage < 4; ++stage) {
    behind_steps(stage, kBf16, [&](Rank& rank, Hashes& hashes, comm::Collectives& c) {
      const ops::Hash sums = hashes.sums(rank.compute());
      EXPECT_EQ(sums != ops::Hash{}, stage == 0);
      for (const std::int64_t other : of_ranks(c, sums))
        EXPECT_EQ(other, static_cast<std::int64_t>(sums.first));
    });
  }
}

TEST(Hashes, GradientsAreWatchedOfOneMicroBatch) {
  for (const int stage : {0, 2}) {
    behind_steps(stage, kBf16, [&](Rank& rank, Hashes& hashes, comm::Collectives& c) {
      EXPECT_TRUE(hashes.apart());
      rank.step(2);
      EXPECT_EQ(hashes.watched(rank.compute()), ops::Hash{}) << "nobody asked";
      hashes.watch(1);
      rank.step(3);
      const ops::Hash second = hashes.watched(rank.compute());
      EXPECT_NE(second, ops::Hash{});
      hashes.watch(0);
      if (c.rank() == 1) hashes.flip_gradient(77);
      rank.step(4);
      EXPECT_NE(hashes.watched(rank.compute()), second);
    });
  }
}

}  // namespace
}  // namespace octet::store::hashes_test
