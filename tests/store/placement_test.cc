// Effects of the rows of the placement table: storage of weights, messages, checkpoints.
#include "octet/store/placement.h"

#include <cstring>

#include "octet/comm/job.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"
#include "store/synthetic.h"

namespace octet::store::placement_test {
namespace {

using namespace synthetic;

struct Case {
  const char* name;
  precision::Recipe recipe;
};
const Case kCases[] = {
    {"fp32", recipe(precision::RecipeKind::none, DType::f32)},
    {"bf16", recipe(precision::RecipeKind::none, DType::bf16)},
    {"delayed", recipe(precision::RecipeKind::delayed, DType::bf16)},
    {"current in parts", recipe(precision::RecipeKind::current, DType::bf16, true)},
    {"block", recipe(precision::RecipeKind::block, DType::bf16)},
};

/// Selects the embedding, one block, the vectors of another, and the matrices of a third.
bool some(const model::SegmentSpec& s) {
  return s.name.starts_with("embedding") || s.name.starts_with("layers.1 ") || s.name == "layers.2 vectors" ||
         s.name == "layers.4 matrices";
}
bool all(const model::SegmentSpec&) {
  return true;
}

Scenario scenario(const Case& c, int stage) {
  Scenario s;
  s.options.stage = stage;
  s.options.recipe = c.recipe;
  s.options.adamw.weight_decay = 0.1;
  return s;
}
Scenario frozen_scenario(const Case& c, int stage) {
  Scenario s = scenario(c, stage);
  s.frozen = some;
  return s;
}

Outcome loaded(int ranks, const Scenario& s, DeviceKind stands_for = DeviceKind::cpu) {
  return on_threads({.ranks = ranks, .stands_for = stands_for}, s, [](Rank& rank) { rank.initialise(); });
}

TEST(Placements, RowsSayWhoIsTrainedInWhichFormatAndWhatIsCut) {
  model::ParameterLayout l = layout(2);
  Options o = scenario(kCases[2], 3).options;
  o.storage = {DType::bf16, DType::bf16, DType::u8};
  const auto row = [&](int world, std::size_t group, std::size_t segment) {
    return placements_of(l, o, world)[group][segment];
  };
  const Placement matrices = row(4, 1, 0), vectors = row(4, 1, 2), frozen = row(4, 3, 1);
  EXPECT_EQ(matrices.role, Role::trained);
  EXPECT_EQ(matrices.format, Format::fp8);
  EXPECT_EQ(matrices.weights, DType::e4m3);
  EXPECT_EQ(matrices.master, DType::bf16);
  EXPECT_EQ(matrices.moments, DType::u8);
  EXPECT_EQ(matrices.state_axis, Axis::data);
  EXPECT_EQ(vectors.master, DType::f32);
  EXPECT_EQ(vectors.moments, DType::f32);
  EXPECT_EQ(matrices.decoded(), false);
  EXPECT_EQ(frozen.role, Role::frozen);
  EXPECT_EQ(frozen.weights, DType::bf16) << "it is not FP8-eligible";
  EXPECT_TRUE(frozen.gathered());
  EXPECT_TRUE(frozen.backward());
  for (o.stage = 0; o.stage < 3; ++o.stage) {
    EXPECT_FALSE(row(4, 3, 1).gathered()) << "stage " << o.stage;
    EXPECT_EQ(row(4, 1, 0).gathered(), o.stage > 0) << "stage " << o.stage;
  }
  EXPECT_FALSE(row(1, 1, 0).gathered());
  o.training = false;
  EXPECT_EQ(row(4, 1, 0).role, Role::inference);
  EXPECT_FALSE(row(4, 1, 0).backward());
  o.fixed.format = Format::nf4;
  EXPECT_EQ(row(4, 1, 0).format, Format::nf4);
  EXPECT_TRUE(row(4, 1, 0).decoded());
  EXPECT_EQ(row(4, 1, 0).weights, DType::e4m3) << "as products read it";
  EXPECT_EQ(row(4, 1, 2).format, Format::f32);
}

TEST(Placements, WhatIsNotBuiltIsRefused) {
  model::ParameterLayout l = layout(2);
  Options o = scenario(kCases[1], 0).options;
  const auto refused = [&](const Options& options) {
    try {
      placements_of(l, options, 2);
    } catch (const Error& error) {
      return error.problem().code == ExitCode::usage ? error.problem().found : "another code";
    }
    return std::string("not refused");
  };
  o.fixed.format = Format::bf16;
  EXPECT_EQ(refused(o), "not refused");
  o.fixed.format = Format::nf4;
  EXPECT_EQ(refused(o), "not refused");
  EXPECT_EQ(placements_of(l, o, 2)[3][1].format, Format::bf16) << "no linear layer of a block";
  o.fixed.format = Format::fp8;
  EXPECT_EQ(refused(o), "FP8") << "GEMMs in bf16 do not read it";
  for (auto& group : l.groups) {
    for (auto& s : group.segments) s.trainable = true;
  }
  EXPECT_EQ(refused(o), "not refused") << "no weight is fixed";
}

TEST(Placements, WhatIsFrozenIsNotInTheStateAndNeverChanges) {
  for (const Case& c : kCases) {
    const Scenario first = frozen_scenario(c, 0);
    const Outcome start = loaded(1, scenario(c, 0)), o = run({.ranks = 1}, first);
    EXPECT_FALSE(o.state.contains("embed.weight")) << c.name;
    EXPECT_FALSE(o.state.contains("layers.1.q.weight")) << c.name;
    EXPECT_FALSE(o.state.contains("exp_avg/layers.4.down.weight")) << c.name;
    EXPECT_TRUE(o.state.contains("exp_avg/layers.4.norm.weight")) << c.name;
    EXPECT_FALSE(o.gradients.contains("layers.1.norm.weight")) << c.name;
    Scenario none = scenario(c, 0);
    none.frozen = all;
    const Outcome untouched = on_threads({.ranks = 1}, none, [](Rank& rank) { rank.initialise(); });
    EXPECT_EQ(untouched.copies, start.copies) << c.name << ": products read what they would read in training";
    EXPECT_EQ(untouched.state.size(), 1u) << c.name << ": the number of updates alone";
  }
}

TEST(Placements, WithAPartFrozenEveryStageGivesTheSameBits) {
  for (const Case& c : kCases) {
    for (const int ranks : {1, 2, 3}) {
      const Outcome reference = run({.ranks = ranks}, frozen_scenario(c, 0));
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(std::string(c.name) + ", " + std::to_string(ranks) + " ranks, stage " +
                     std::to_string(stage));
        const Outcome o = run({.ranks = ranks, .compute_worker = stage == 3}, frozen_scenario(c, stage));
        EXPECT_EQ(difference(reference.state, o.state), "");
        EXPECT_EQ(difference(reference.gradients, o.gradients), "");
        for (const std::int64_t hash : o.copies) EXPECT_EQ(hash, reference.copies[0]);
        for (const std::int64_t hash : o.scales) EXPECT_EQ(hash, reference.scales[0]);
      }
    }
  }
}

TEST(Placements, GradientsOfTheRestAreThoseOfAFullRun) {
  for (const Case& c : kCases) {
    for (const int stage : {0, 1, 2, 3}) {
      Scenario full = scenario(c, stage), part = frozen_scenario(c, stage);
      full.steps = part.steps = 1;
      Outcome whole = run({.ranks = 2}, full);
      const Outcome rest = run({.ranks = 2}, part);
      std::erase_if(whole.gradients,
                    [&](const auto& entry) { return !rest.gradients.contains(entry.first); });
      EXPECT_EQ(difference(whole.gradients, rest.gradients), "") << c.name << ", stage " << stage;
      EXPECT_GT(rest.gradients.size(), 10u);
    }
  }
}

TEST(Placements, WeightsForInferenceAreThoseOfTrainingAtEveryStage) {
  for (const Case& c : kCases) {
    const Outcome trained = loaded(2, scenario(c, 0));
    for (const int ranks : {1, 2, 3}) {
      for (const int stage : {0, 1, 3}) {
        Scenario s = scenario(c, stage);
        s.options.training = false;
        for (const std::int64_t hash : loaded(ranks, s).copies) {
          EXPECT_EQ(hash, trained.copies[0]) << c.name << ", " << ranks << " ranks, stage " << stage;
        }
      }
    }
  }
}

TEST(Placements, FreshValuesDoNotDependOnTheRole) {
  for (const Case& c : kCases) {
    std::vector<std::int64_t> hashes;
    for (const bool training : {true, false}) {
      Scenario s = scenario(c, 3);
      s.options.training = training;
      const Outcome o =
          on_threads({.ranks = 2}, s, [](Rank& rank) { rank.store().initialise(rank.compute(), 7); });
      hashes.insert(hashes.end(), o.copies.begin(), o.copies.end());
    }
    for (const std::int64_t hash : hashes) EXPECT_EQ(hash, hashes[0]) << c.name;
  }
}

TEST(Placements, FrozenFp8WeightsHaveTransposedCopiesWhereBackwardReadsThem) {
  for (const TransposedWeights when : {TransposedWeights::kept, TransposedWeights::at_use}) {
    for (const int stage : {0, 1, 3}) {
      Scenario s = scenario(kCases[3], stage);
      s.frozen = all;
      s.options.transposed = when;
      on_threads({.ranks = 2, .stands_for = DeviceKind::cuda}, s, [&](Rank& rank) {
        rank.initialise();
        for (int g = 1; g <= 5; ++g) {
          const auto& p = rank.store().acquire(g, model::Pass::backward, rank.compute());
          rank.compute().synchronize();
          for (std::size_t t = 0; t < 2; ++t) {
            for (const ops::Operand& w : p.operands(0, t)) {
              const auto* data = static_cast<const std::uint8_t*>(w.data);
              const auto* flipped = static_cast<const std::uint8_t*>(w.transposed);
              ASSERT_NE(flipped, nullptr);
              std::int64_t different = 0;
              for (std::int64_t i = 0; i < w.rows * w.cols; ++i) {
                different += data[i] != flipped[i % w.cols * w.rows + i / w.cols];
              }
              EXPECT_EQ(different, 0) << "group " << g << ", stage " << stage;
            }
          }
          rank.store().release(g, model::Pass::backward, rank.compute());
        }
      });
    }
  }
}

TEST(Placements, AResumedRunLoadsWhatIsFrozenFromWhereItCame) {
  for (const Case& c : kCases) {
    Scenario s = frozen_scenario(c, 1);
    s.steps = 4;
    const Outcome uninterrupted = run({.ranks = 2}, s);
    s.steps = 2;
    const Outcome half = run({.ranks = 2}, s);
    s.options.stage = 3;
    const Outcome resumed = on_threads({.ranks = 2}, s, [&](Rank& rank) {
      rank.load(half.state);
      rank.steps(2, 2);
    });
    EXPECT_EQ(difference(uninterrupted.state, resumed.state), "") << c.name;
    EXPECT_EQ(uninterrupted.copies, resumed.copies) << c.name;
  }
}

/// A configuration for Llama-3.1-8B.
struct Held {
  const char* name;
  Role role;
  precision::RecipeKind kind;
  Storage storage;
  TransposedWeights transposed;
  std::optional<Format> fixed = {};
};

/// Returns the bytes per parameter that one of `world` GPUs reserves at a stage.
double bytes_of(const Held& held, int stage, int world) {
  const std::unique_ptr<Device> device = make_dry_device({.stands_for = DeviceKind::cuda});
  const auto job = comm::make_dry_job({.rank = 0, .size = world, .local_size = world});
  const auto data = job->collectives(comm::Mesh(world).group("data", 0), *device, comm::Carrier::automatic);
  model::ParameterLayout l = model::build_layout(model::find_shape("llama-3.1-8b"));
  for (auto& group : l.groups) {
    for (auto& s : group.segments) s.trainable = held.role == Role::trained;
  }
  const auto parameters = static_cast<double>(l.parameter_count());
  Options o;
  o.stage = stage;
  o.recipe = recipe(held.kind, DType::bf16);
  o.storage = held.storage;
  o.transposed = held.transposed;
  o.fixed.format = held.fixed;
  o.training = held.role != Role::inference;
  o.deterministic = false;
  Arena arena(*device);
  const ParameterStore store(std::move(l), arena, *data, o);
  return static_cast<double>(arena.bytes()) / parameters;
}

TEST(Placements, BytesAParameterOfLlama8B) {
  using precision::RecipeKind;
  constexpr Storage kWide, kNarrow{DType::bf16, DType::bf16, DType::bf16},
      kInt8{DType::bf16, DType::bf16, DType::u8};
  constexpr auto kKept = TransposedWeights::kept, kAtUse = TransposedWeights::at_use;
  // The model has 8.03e9 parameters: 6.98e9 in the matrices of 32 blocks, which may be FP8, and 1.05e9 in the
  // embedding and the head. `alone`: one GPU. `cut`: one of eight GPUs at stage 3. It holds an eighth of the
  // state. It also has buffers for the embedding, the head and two blocks (1.49e9 parameters), and for their
  // gradients.
  const struct {
    Held held;
    double alone, cut;
  } kTable[] = {
      {{"trained, fp32", Role::trained, RecipeKind::none, kWide, kKept}, 18.00, 3.361},
      {{"trained, bf16", Role::trained, RecipeKind::none, kNarrow, kKept}, 8.00, 1.741},
      {{"trained, int8 moments", Role::trained, RecipeKind::none, kInt8, kKept}, 6.06, 1.498},
      {{"frozen, bf16", Role::frozen, RecipeKind::none, kWide, kKept}, 2.00, 0.620},
      {{"frozen, FP8", Role::frozen, RecipeKind::delayed, kWide, kAtUse}, 1.16, 0.485},
      {{"frozen, FP8, transposed", Role::frozen, RecipeKind::delayed, kWide, kKept}, 2.00, 0.512},
      // Codes have 0.516 bytes per weight. The embedding, the head and one decoded block have 2 bytes per
      // value. A block in FP8 has two copies, and a buffer for the values of its largest matrix.
      {{"frozen, NF4", Role::frozen, RecipeKind::none, kWide, kKept, Format::nf4}, 0.764, 0.4328},
      {{"frozen, NF4 to FP8", Role::frozen, RecipeKind::delayed, kWide, kKept, Format::nf4}, 0.7645, 0.4328},
      {{"inference, bf16", Role::inference, RecipeKind::none, kWide, kKept}, 2.00, 0.620},
      {{"inference, FP8", Role::inference, RecipeKind::delayed, kWide, kKept}, 1.13, 0.457},
  };
  for (const auto& row : kTable) {
    EXPECT_NEAR(bytes_of(row.held, 0, 1), row.alone, 0.005) << row.held.name << ", alone";
    EXPECT_NEAR(bytes_of(row.held, 3, 8), row.cut, 0.0006) << row.held.name << ", at stage 3 of 8";
  }
}

}  // namespace
}  // namespace octet::store::placement_test
