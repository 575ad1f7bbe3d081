#include <map>

#include "store/synthetic.h"

namespace octet::store {
namespace {

using namespace synthetic;

using Rows = std::map<std::string, std::size_t>;

Rows rows_of(const Arena& arena) {
  Rows rows;
  for (const Reservation& r : arena.reservations()) rows[r.name] += r.bytes;
  return rows;
}

/// Padded elements among `world` ranks.
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

/// What the store of rank 0 reserves. A 256-byte boundary can add to a row, so slices are made of 256 bytes.
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
  // The whole protocol can be enqueued on it.
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

}  // namespace
}  // namespace octet::store
