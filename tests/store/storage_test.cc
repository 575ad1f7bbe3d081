// Parameters, gradients and moments in narrow formats: equal bits at every stage, also when resumed, and the
// expected memory.
#include <algorithm>
#include <cmath>
#include <map>

#include "store/synthetic.h"

namespace octet::store::storage_test {
namespace {

using namespace synthetic;

struct Case {
  const char* name;
  Storage storage;
  precision::RecipeKind kind = precision::RecipeKind::none;
};
const Case kCases[] = {
    {"all bf16", {DType::bf16, DType::bf16, DType::bf16}},
    {"bf16 parameters, 8-bit moments", {DType::bf16, DType::f32, DType::u8}},
    {"8-bit moments", {DType::f32, DType::f32, DType::u8}},
    {"all bf16, fp8 delayed", {DType::bf16, DType::bf16, DType::bf16}, precision::RecipeKind::delayed},
    {"bf16 and 8-bit moments, fp8 current",
     {DType::bf16, DType::bf16, DType::u8},
     precision::RecipeKind::current},
};

Scenario scenario(const Case& c, int stage, bool overlap = true, bool deterministic = true) {
  Scenario s;
  s.options.stage = stage;
  s.options.overlap = overlap;
  s.options.deterministic = deterministic;
  s.options.recipe.compute = DType::bf16;
  s.options.recipe.kind = c.kind;
  s.options.recipe.history_length = 4;
  s.options.storage = c.storage;
  s.options.adamw.weight_decay = 0.1;
  s.options.adamw.seed = 11;
  return s;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(difference(a.state, b.state), "") << what;
  EXPECT_EQ(difference(a.gradients, b.gradients), "") << what;
  for (std::size_t i = 0; i < a.results.size(); ++i) {
    EXPECT_EQ(a.results[i].grad_norm, b.results[i].grad_norm) << what;
  }
  for (const std::int64_t hash : b.copies) EXPECT_EQ(hash, a.copies[0]) << what;
}

TEST(ZeroStorage, EveryStageGivesTheSameBitsWithOverlapOrWithout) {
  for (const Case& c : kCases) {
    for (const int ranks : {1, 2, 3}) {
      const Outcome reference = run({.ranks = ranks}, scenario(c, 0, false));
      for (const int stage : {0, 1, 2, 3}) {
        for (const bool overlap : {false, true}) {
          expect_same(reference, run({.ranks = ranks}, scenario(c, stage, overlap)),
                      std::string(c.name) + ", " + std::to_string(ranks) + " ranks, stage " +
                          std::to_string(stage) + (overlap ? ", overlap" : ""));
        }
      }
    }
  }
}

TEST(ZeroStorage, AComputeWorkerSeesNoLateReadAndNoEarlyReuse) {
  for (const Case& c : kCases) {
    const Outcome reference = run({.ranks = 3}, scenario(c, 0, false));
    for (const int stage : {0, 3}) {
      expect_same(reference, run({.ranks = 3, .compute_worker = true}, scenario(c, stage)), c.name);
    }
  }
}

TEST(ZeroStorage, ResumedAtAnotherStageItGoesOnWithTheSameBits) {
  for (const Case& c : kCases) {
    if (c.kind == precision::RecipeKind::delayed)
      continue;  // this test does not load the amaxes of activations
    Scenario whole = scenario(c, 0);
    whole.steps = 4;
    const Outcome uninterrupted = run({.ranks = 3}, whole);
    whole.steps = 2;
    const Outcome half = run({.ranks = 3}, whole);
    for (const int stage : {0, 1, 3}) {
      const Outcome resumed = on_threads({.ranks = 3}, scenario(c, stage), [&](Rank& rank) {
        rank.load(half.state);
        rank.steps(2, 2);
      });
      EXPECT_EQ(difference(uninterrupted.state, resumed.state), "") << c.name << stage;
      EXPECT_EQ(uninterrupted.copies, resumed.copies) << c.name << stage;
    }
  }
}

TEST(ZeroStorage, NarrowStatesStayWithWideOnes) {
  Scenario wide = scenario({"fp32", {}}, 0);
  wide.micro_batches = 6;
  const Outcome six = run({.ranks = 1}, wide);
  for (const Case& c : kCases) {
    if (c.kind != precision::RecipeKind::none) continue;
    for (const int ranks : {1, 3}) {
      for (const bool deterministic : {true, false}) {
        for (const int stage : {0, 1, 2}) {
          Scenario s = scenario(c, stage, true, deterministic);
          s.micro_batches = 6 / ranks;
          const Outcome narrow = run({.ranks = ranks}, s);
          // There are three steps of at most 0.01. For a parameter of 0.5, the spacing of bf16 is 0.004.
          for (const auto& [name, values] : six.state) {
            if (name.find('/') != std::string::npos) continue;
            double sum = 0, squares = 0;
            for (std::size_t i = 0; i < values.size(); ++i) {
              const auto d = static_cast<double>(narrow.state.at(name)[i] - values[i]);
              sum += d, squares += d * d;
            }
            const auto n = static_cast<double>(values.size());
            EXPECT_LT(std::sqrt(squares / n), 6e-3) << c.name << " " << name;
            EXPECT_LT(std::abs(sum / n), 6e-3 / std::sqrt(n) * 5) << c.name << " " << name;
          }
          EXPECT_NEAR(narrow.results.back().grad_norm / six.results.back().grad_norm, 1, 0.02);
        }
      }
    }
  }
}

TEST(ZeroStorage, ARankWithoutTokensTakesPart) {
  for (const Case& c : kCases) {
    Outcome reference;
    for (const int stage : {0, 1, 2, 3}) {
      Scenario s = scenario(c, stage);
      s.idle = [](int, int m, int rank) { return rank == 2 || (rank == 1 && m == 1); };
      const Outcome o = run({.ranks = 3}, s);
      if (stage == 0) reference = o;
      expect_same(reference, o, c.name);
    }
  }
}

TEST(ZeroStorage, ScalesOfBlocksAreSlicesOfTheStoredTensors) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
    Rank rank(collectives, device, scenario(kCases[2], 0));
    std::map<std::string, TensorSlice> slices;
    for (const TensorSlice& s : rank.store().owned_slices()) slices[s.name] = s;
    EXPECT_EQ(slices.at("exp_avg/layers.0.k.weight").dtype, DType::u8);
    EXPECT_EQ(slices.at("exp_avg_sq/layers.4.q.bias").dtype, DType::f32);
    // 40 rows of 20 columns are 6.25 blocks.
    EXPECT_EQ(slices.at("exp_avg_scale/layers.0.qkv").shape, (std::vector<std::int64_t>{7}));
    EXPECT_EQ(slices.at("exp_avg_sq_scale/layers.0.router").shape, (std::vector<std::int64_t>{1}));
    EXPECT_FALSE(slices.contains("exp_avg_scale/layers.0.norm"));
  });
}

TEST(ZeroStorage, EachTensorIsRoundedByNoiseOfItsOwn) {
  Scenario s = scenario(kCases[0], 1);
  s.gradient_scale = [](int) { return 0.0f; };
  // All values are equal and only weight decay changes them, so later differences are rounding noise.
  const Outcome o = on_threads({.ranks = 2}, s, [](Rank& rank) {
    rank.store().initialise(rank.compute(), [](const std::vector<TensorSlice>& slices) {
      for (const TensorSlice& slice : slices) std::fill_n(static_cast<float*>(slice.data), slice.count, 1.0f);
    });
    rank.step(0);
  });
  std::map<std::vector<float>, std::string> seen;
  for (const auto& [name, values] : o.state) {
    if (values.size() < 160 || name.find('/') != std::string::npos) continue;
    const std::vector<float> first(values.begin(), values.begin() + 160);
    EXPECT_NE(std::ranges::min(first), std::ranges::max(first)) << name << " is not rounded by noise";
    const auto [other, fresh] = seen.try_emplace(first, name);
    EXPECT_TRUE(fresh) << name << " is rounded by the noise of " << other->second;
  }
  EXPECT_EQ(seen.size(), 1 + 4 * 5u) << "embedding, and q, k, v and down of five blocks";
  // Compares the last tensor of one segment and the first of the next.
  for (int b = 0; b < 5; ++b) {
    const auto first = [&](const std::string& name) {
      const auto& values = o.state.at("layers." + std::to_string(b) + name);
      return std::vector<float>(values.begin(), values.begin() + 15);
    };
    EXPECT_NE(first(".down.weight"), first(".router.weight")) << b;
  }
}

TEST(ZeroStorage, FormatsThatDoNotGoTogetherAreRefused) {
  Options o;
  o.storage.gradients = DType::bf16;
  EXPECT_THROW(policy_of(o, 1), std::logic_error);
  o.storage.parameters = DType::bf16;
  EXPECT_THROW(policy_of(o, 1), std::logic_error) << "fp32 is computed with";
  o.recipe.compute = DType::bf16;
  EXPECT_NO_THROW(policy_of(o, 1));
}

/// Expected memory of a rank according to the ZeRO paper, with the bytes of the formats. Every reservation
/// begins on a 256-byte boundary.
std::size_t up(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
}
using Rows = std::map<std::string, std::size_t>;
Rows paper(const model::ParameterLayout& layout, int world, const Options& o) {
  Rows rows;
  const bool many = world > 1;
  const bool cut_state = many && o.stage >= 1, cut_gradients = many && o.stage >= 2;
  const bool cut_parameters = many && o.stage >= 3;
  const std::int64_t groups = static_cast<std::int64_t>(layout.groups.size());
  std::vector<std::int64_t> gradients(static_cast<std::size_t>(groups)), gathered(gradients.size());
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    for (const model::SegmentSpec& s : layout.groups[g].segments) {
      const std::int64_t n = model::padded_count(s, world), slice = n / world;
      const bool matrix = s.kind == model::ParameterKind::matrix;
      const auto size = [&](DType dtype) {
        return static_cast<std::int64_t>(size_of(matrix ? dtype : DType::f32));
      };
      const std::int64_t master = size(o.storage.parameters), moment = size(o.storage.moments);
      const std::int64_t gradient = size(o.storage.gradients);
      const std::int64_t copy = matrix && s.fp8 && o.recipe.fp8() ? 1 : size(DType::bf16);
      const bool one = copy == master;
      const std::int64_t state = cut_state ? slice : n;
      if (!s.trainable) {  // stored once
        rows["parameters"] += up(copy * (cut_parameters ? slice : n));
        if (cut_parameters) gathered[g] += copy * n;
        continue;
      }
      if (cut_parameters) {
        rows["parameters"] += up(master * slice) + (one ? 0 : up(copy * slice));
        gathered[g] += copy * n;
      } else {
        rows["parameters"] += up(copy * n) + (one ? 0 : up(master * state));
      }
      gradients[g] += gradient * n;
      rows["optimizer"] += 2 * up(moment * state);
      if (moment == 1) rows["optimizer"] += 2 * up(4 * state / 128);
      // Sums over micro-batches: fp32 if deterministic; whole if a rank updates everything and gradients are
      // bf16.
      const bool apart =
          many ? o.deterministic || o.stage >= 2 : o.deterministic && o.storage.gradients == DType::bf16;
      const bool whole = !cut_state && gradient == 2;
      if (apart) rows["sums"] += up((o.deterministic ? 4 : gradient) * (whole || !many ? n : slice));
    }
  }
  for (std::size_t g = 0; g < gradients.size(); ++g) {
    // Two blocks alternate.
    const bool own = g <= 2 || g + 1 == gradients.size();
    if (!cut_gradients || own) rows["gradients"] += up(gradients[g]);
    if (cut_parameters && own) rows["parameters"] += up(gathered[g]);
  }
  return rows;
}

TEST(ZeroStorage, MemoryOfARankFollowsTheFormulaOfThePaper) {
  // Buffers have the size of the larger of the blocks that share them; here all are equal.
  model::ParameterLayout l = layout(6);
  const std::vector<Storage> storages = {{},
                                         {DType::f32, DType::f32, DType::bf16},
                                         {DType::f32, DType::f32, DType::u8},
                                         {DType::bf16, DType::f32, DType::f32},
                                         {DType::bf16, DType::bf16, DType::bf16},
                                         {DType::bf16, DType::bf16, DType::u8}};
  for (const Storage& storage : storages) {
    for (const auto kind : {precision::RecipeKind::none, precision::RecipeKind::current}) {
      for (const int world : {1, 2, 4}) {
        for (const int stage : {0, 1, 2, 3}) {
          for (const bool deterministic : {true, false}) {
            Options o;
            o.stage = stage;
            o.deterministic = deterministic;
            o.recipe.compute = DType::bf16;
            o.recipe.kind = kind;
            o.storage = storage;
            Rows found;
            comm::run_ranks_as_threads(
                {.ranks = world}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
                  Arena arena(device);
                  const ParameterStore store(layout(6), arena, collectives, o);
                  if (collectives.rank() == 0) {
                    for (const Reservation& r : arena.reservations()) {
                      if (r.name.starts_with("gradients/sums")) {
                        found["sums"] += up(static_cast<std::int64_t>(r.bytes));
                      } else if (!r.name.starts_with("step/") && !r.name.starts_with("fp8_weights")) {
                        found[r.name.substr(0, r.name.find('/'))] += up(static_cast<std::int64_t>(r.bytes));
                      }
                    }
                  }
                  collectives.channel().barrier();
                });
            EXPECT_EQ(found, paper(l, world, o))
                << "stage " << stage << ", " << world << " ranks, parameters " << name_of(storage.parameters)
                << ", gradients " << name_of(storage.gradients) << ", moments " << name_of(storage.moments)
                << (deterministic ? ", deterministic" : "") << (o.recipe.fp8() ? ", fp8" : "");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::store::storage_test
