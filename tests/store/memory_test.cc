#include <algorithm>
#include <cmath>
#include <map>

#include "store/synthetic.h"

namespace octet::store::memory_test {
namespace {

using namespace synthetic;

using Rows = std::map<std::string, std::size_t>;

Rows rows_of(const Arena& arena) {
  Rows rows;
  for (const Reservation& r : arena.reservations()) rows[r.name] += r.bytes;
  return rows;
}

/// Padded elements for `world` ranks.
struct Elements {
  std::size_t matrices = 0, fp8 = 0, vectors = 0, frozen = 0;
  std::size_t trained() const { return matrices + fp8 + vectors; }
  std::size_t all() const { return trained() + frozen; }
};
Elements count(const model::ParameterLayout& layout, int world, std::size_t group = SIZE_MAX) {
  Elements e;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    if (group != SIZE_MAX && g != group) continue;
    for (const model::SegmentSpec& s : layout.groups[g].segments) {
      const auto n = static_cast<std::size_t>(model::padded_count(s, world));
      if (!s.trainable) {
        e.frozen += n;
      } else if (s.kind == model::ParameterKind::vector) {
        e.vectors += n;
      } else {
        (s.fp8 ? e.fp8 : e.matrices) += n;
      }
    }
  }
  return e;
}

/// Returns the reservations of rank 0's store. A 256-byte boundary can add to a row, so slices are multiples
/// of 256 bytes.
Rows reserve(int world, const Options& options, int blocks = 6) {
  Rows rows;
  comm::run_ranks_as_threads({.ranks = world},
                             [&](comm::Job&, comm::Collectives& collectives, Device& device) {
                               Arena arena(device);
                               const ParameterStore store(layout(blocks), arena, collectives, options);
                               if (collectives.rank() == 0) rows = rows_of(arena);
                               collectives.channel().barrier();
                             });
  return rows;
}

Options options_of(int stage, DType compute) {
  Options o;
  o.stage = stage;
  o.recipe.compute = compute;
  return o;
}

TEST(ZeroMemory, StageZeroHoldsMasterMomentsGradientsAndCopiesWhole) {
  constexpr int kWorld = 2;
  const Elements e = count(layout(6), kWorld);
  const Rows rows = reserve(kWorld, options_of(0, DType::bf16));
  EXPECT_EQ(rows.at("parameters/master"), 4 * e.trained());
  EXPECT_EQ(rows.at("parameters/copies"), 2 * (e.matrices + e.fp8));
  EXPECT_EQ(rows.at("parameters/fixed"), 2 * e.frozen);
  EXPECT_EQ(rows.at("gradients"), 4 * e.trained());
  EXPECT_EQ(rows.at("gradients/sums"), 4 * e.trained() / kWorld);
  EXPECT_EQ(rows.at("optimizer/exp_avg"), 4 * e.trained());
  EXPECT_EQ(rows.at("optimizer/exp_avg_sq"), 4 * e.trained());
}

TEST(ZeroMemory, StageOneCutsMasterAndMomentsByTheRanks) {
  constexpr int kWorld = 4;
  const Elements e = count(layout(6), kWorld);
  const Rows rows = reserve(kWorld, options_of(1, DType::bf16));
  // The master of a vector is its slice of the copy.
  EXPECT_EQ(rows.at("parameters/master"), 4 * (e.matrices + e.fp8) / kWorld);
  EXPECT_EQ(rows.at("parameters/copies"), 2 * (e.matrices + e.fp8) + 4 * e.vectors);
  EXPECT_EQ(rows.at("parameters/fixed"), 2 * e.frozen);
  EXPECT_EQ(rows.at("gradients"), 4 * e.trained());
  EXPECT_EQ(rows.at("optimizer/exp_avg"), 4 * e.trained() / kWorld);
  EXPECT_EQ(rows.at("optimizer/exp_avg_sq"), 4 * e.trained() / kWorld);
}

TEST(ZeroMemory, StageTwoSharesGradientBuffersBetweenBlocks) {
  constexpr int kWorld = 4;
  const model::ParameterLayout l = layout(6);
  const Rows rows = reserve(kWorld, options_of(2, DType::bf16));
  const std::size_t shared = count(l, kWorld, 0).trained() + count(l, kWorld, l.groups.size() - 1).trained() +
                             count(l, kWorld, 1).trained() + count(l, kWorld, 2).trained();
  EXPECT_EQ(rows.at("gradients"), 4 * shared);
  EXPECT_EQ(rows.at("gradients/sums"), 4 * count(l, kWorld).trained() / kWorld);
}

TEST(ZeroMemory, StageThreeKeepsShardsAndGathersIntoTwoBlocks) {
  constexpr int kWorld = 4;
  const model::ParameterLayout l = layout(6);
  const Elements e = count(l, kWorld);
  const Rows rows = reserve(kWorld, options_of(3, DType::bf16));
  EXPECT_EQ(rows.at("parameters/master"), 4 * e.trained() / kWorld);
  EXPECT_EQ(rows.at("parameters/copies"), 2 * (e.matrices + e.fp8) / kWorld);
  EXPECT_EQ(rows.at("parameters/fixed"), 2 * e.frozen / kWorld);
  std::size_t gathered = 0;
  for (const std::size_t group : {std::size_t{0}, std::size_t{1}, std::size_t{2}, l.groups.size() - 1}) {
    const Elements g = count(l, kWorld, group);
    gathered += 2 * (g.matrices + g.fp8 + g.frozen) + 4 * g.vectors;
  }
  EXPECT_EQ(rows.at("parameters/gathered"), gathered);
}

TEST(ZeroMemory, Fp8WeightsTakeOneByte) {
  Options o = options_of(0, DType::bf16);
  o.recipe.kind = precision::RecipeKind::current;
  const Elements e = count(layout(6), 2);
  EXPECT_EQ(reserve(2, o).at("parameters/copies"), e.fp8 + 2 * e.matrices);
}

TEST(ZeroMemory, OneRankInFp32HoldsSixteenBytesAParameterAtEveryStage) {
  const Elements e = count(layout(6), 1);
  for (const int stage : {0, 1, 2, 3}) {
    const Rows rows = reserve(1, options_of(stage, DType::f32));
    std::size_t bytes = 0;
    for (const auto& [name, size] : rows) {
      if (!name.starts_with("step/")) bytes += size;
    }
    EXPECT_EQ(bytes, 16 * e.trained() + 4 * e.frozen) << stage;
    EXPECT_FALSE(rows.contains("gradients/sums"));
  }
}

TEST(ZeroMemory, WithoutTrainingThereAreParametersOnly) {
  Options o = options_of(0, DType::bf16);
  o.training = false;
  const Elements e = count(layout(6), 2);
  for (const auto& [name, bytes] : reserve(2, o)) {
    EXPECT_TRUE(name == "parameters/fixed" || name.starts_with("step/")) << name;
  }
  EXPECT_EQ(reserve(2, o).at("parameters/fixed"), 2 * (e.all() - e.vectors) + 4 * e.vectors);
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
    Scenario s;
    s.options = o;
    s.options.stage = 1;
    Rank rank(collectives, device, s);
    rank.initialise();
    EXPECT_THROW(rank.store().begin_step(1), std::logic_error);
    const Outcome read = rank.outcome();
    EXPECT_EQ(read.copies[0], read.copies[1]);
    EXPECT_EQ(read.state.size(), 1u) << "the number of updates alone";
  });
}

TEST(ZeroMemory, ADryDevicePlansTheSameRows) {
  Options o = options_of(1, DType::bf16);
  o.recipe.kind = precision::RecipeKind::delayed;
  const std::unique_ptr<Device> dry = make_dry_device();
  const auto job = comm::make_self_job();
  const auto alone = job->collectives(comm::Mesh(1).group("data", 0), *dry, comm::Carrier::automatic);
  Arena arena(*dry);
  ParameterStore store(layout(6), arena, *alone, o);
  EXPECT_EQ(rows_of(arena), reserve(1, o));
  // The whole protocol can be enqueued on a dry device.
  const auto compute = dry->make_stream({.name = "compute"});
  store.refresh_copies(*compute, Scales::from_weights);
  store.begin_step(1);
  store.begin_micro_batch(0, *compute, nullptr);
  store.contribute_nothing(*compute);
  store.end_micro_batch(*compute);
  store.finish({.learning_rate = 1e-3, .label_tokens = 1}, *compute);
  store.collect();
}

TEST(ZeroMemory, AnUnknownStageIsRefused) {
  EXPECT_THROW(policy_of(options_of(4, DType::f32), 2), std::logic_error);
  EXPECT_THROW(policy_of(options_of(-1, DType::f32), 2), std::logic_error);
}

// Determines which gradients an update reads: NaNs in unread gradients do not change the weights.
TEST(UpdateBytes, AreThoseThatTheEndOfAStepReadsAndWrites) {
  constexpr int kWorld = 2, kBlocks = 2;
  const Elements all = count(layout(kBlocks), kWorld);
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool deterministic : {false, true}) {
      Scenario s{
          .options = options_of(stage, DType::bf16), .steps = 1, .micro_batches = 1, .blocks = kBlocks};
      s.options.deterministic = deterministic;
      std::size_t told = 0;
      const auto weights_after = [&](bool others, bool own) {
        s.before_update = [&, others, own](Rank& rank) {
          if (rank.number() == 0) told = rank.store().update_bytes();
          // Compares addresses, because a slice of sums may be inside a gradient buffer or separate.
          std::vector<std::pair<const char*, const char*>> sums;
          for (const TensorSlice& slice : rank.store().gradient_slices()) {
            const auto size = static_cast<std::int64_t>(size_of(slice.dtype));
            for (std::int64_t row = 0; row < slice.rows; ++row) {
              const char* at = static_cast<const char*>(slice.data) + row * slice.pitch * size;
              sums.emplace_back(at, at + slice.count * size);
            }
          }
          for (const auto& [name, slice] : rank.left()) {
            const auto size = static_cast<std::int64_t>(size_of(slice.dtype));
            for (std::int64_t i = 0; i < slice.count; ++i) {
              const char* at = static_cast<const char*>(slice.data) + i * size;
              const bool is_own = std::ranges::any_of(
                  sums, [at](const auto& sum) { return at >= sum.first && at < sum.second; });
              if (is_own ? own : others) set_element(slice, i, std::nanf(""));
            }
          }
        };
        return run({.ranks = kWorld}, s).copies;
      };
      // The hashes of each rank's compute copies.
      const std::vector<std::int64_t> untouched = weights_after(false, false);
      const bool reads_others = untouched != weights_after(true, false);
      const bool reads_own = untouched != weights_after(false, true);
      EXPECT_EQ(reads_others, stage == 0) << stage << deterministic;
      EXPECT_EQ(reads_own, stage <= 1 && !deterministic) << "else sums lie apart " << stage << deterministic;
      const std::size_t gradients = 4 * all.trained() / (reads_others ? 1 : kWorld);
      const std::size_t state = 3 * 4 * all.trained() / (stage == 0 ? 1 : kWorld);
      const std::size_t copies = 2 * (all.matrices + all.fp8) / (stage == 0 ? 1 : kWorld);
      EXPECT_EQ(told, gradients + 2 * state + copies)
          << "stage " << stage << ", deterministic " << deterministic;
    }
  }
}

TEST(UpdateBytes, AreFewerWhereStatesAreNarrow) {
  constexpr int kWorld = 2;
  const auto told_by = [](const Options& options) {
    std::size_t told = 0;
    comm::run_ranks_as_threads({.ranks = kWorld},
                               [&](comm::Job&, comm::Collectives& collectives, Device& device) {
                                 Arena arena(device);
                                 const ParameterStore store(layout(6), arena, collectives, options);
                                 if (collectives.rank() == 0) told = store.update_bytes();
                                 collectives.channel().barrier();
                               });
    return told;
  };
  Options wide = options_of(1, DType::bf16), narrow = wide;
  narrow.storage = {.parameters = DType::bf16, .gradients = DType::bf16, .moments = DType::bf16};
  const Elements e = count(layout(6), kWorld);
  EXPECT_EQ(told_by(wide), (28 * e.trained() + 2 * (e.matrices + e.fp8)) / kWorld);
  EXPECT_LT(told_by(narrow), told_by(wide) * 6 / 10);
  Options eight = narrow;
  eight.storage.moments = DType::u8;
  EXPECT_LT(told_by(eight), told_by(narrow));
}

}  // namespace
}  // namespace octet::store::memory_test
