// FP8 cast statistics of an engine. They cover the operands of its GEMMs on any number of ranks, and do not
// change a bit of a step. Also tests their format in the log.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "../../src/train/logs/step_report.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/comm/thread_ranks.h"
#include "octet/feed/loader.h"
#include "octet/model/shapes.h"
#include "octet/train/engine.h"

namespace octet::train::casts_test {
namespace {

using precision::RecipeKind;
using Rows = std::map<std::string, ops::Fp8Seen>;

runtime::InstanceOptions options_of(RecipeKind kind, int stage) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.layers = 2;
  o.architecture.blocks.resize(2);
  o.architecture.vocabulary = 256;
  o.reproducible = true;
  o.store.stage = stage;
  o.store.recipe = {.kind = kind, .compute = DType::bf16, .history_length = 4};
  o.store.recipe.scale_parts = kind == RecipeKind::current;
  if (kind == RecipeKind::block) o.store.recipe.gradient_format = DType::e4m3;
  o.transformer.max_tokens = o.transformer.max_length = 32;
  o.max_micro_batches = 2;
  return o;
}

runtime::HostBatch batch_of(std::int32_t seed) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 24; ++i) ids.push_back((i * 37 + seed * 101) % 256);
  runtime::add_document(batch, ids, ids);
  return batch;
}

struct Trained {
  std::vector<double> numbers;  ///< losses and norms
  std::vector<Rows> rows;       ///< per step, over all ranks
};

/// Selects the recorded steps.
using Watched = std::function<bool(int step)>;
bool always(int) {
  return true;
}
bool never(int) {
  return false;
}

/// Runs steps of two micro-batches per rank.
Trained train(RecipeKind kind, int stage, int ranks, const Watched& watched, double rate = 1e-2) {
  Trained all;
  comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of(kind, stage));
    engine.initialise(1);
    for (int step = 0; step < 3; ++step) {
      engine.watch_casts({.next = watched(step), .after = watched(step + 1)});
      engine.begin(2);
      for (int m = 0; m < 2; ++m) engine.micro_batch(batch_of(step + 5 * m + 11 * job.rank()));
      const store::StepResult result = engine.finish(rate);
      const auto rows = casts_of_all(job, engine.cast_rows());
      if (job.rank() != 0) continue;
      all.numbers.push_back(result.loss_sum);
      all.numbers.push_back(result.grad_norm);
      Rows& named = all.rows.emplace_back();
      for (const precision::CastRow& row : rows) named[row.name] = row.seen;
    }
    engine.store().synchronize(engine.compute());
  });
  return all;
}

constexpr RecipeKind kRecipes[] = {RecipeKind::delayed, RecipeKind::current, RecipeKind::block};

TEST(Casts, AreWatchedWithoutChangingABit) {
  for (const RecipeKind kind : kRecipes) {
    for (const int stage : {0, 2}) {
      const Trained plain = train(kind, stage, 2, never), watched = train(kind, stage, 2, always);
      EXPECT_EQ(plain.numbers, watched.numbers);
      for (const auto& [name, seen] : plain.rows.back()) EXPECT_EQ(seen.values, 0u) << name;
    }
  }
}

// A recorded step between steps that are not recorded has the same statistics as if all are recorded.
TEST(Casts, OfAStepDoNotDependOnWhichOthersAreWatched) {
  for (const RecipeKind kind : kRecipes) {
    for (const int stage : {0, 2}) {
      const Trained all = train(kind, stage, 2, always, 0.05);
      const Trained second = train(
          kind, stage, 2, [](int step) { return step == 1; }, 0.05);
      for (const auto& [name, seen] : all.rows[1]) {
        const ops::Fp8Seen& alone = second.rows[1].at(name);
        EXPECT_EQ(alone.amax, seen.amax) << name;
        EXPECT_EQ(alone.scale, seen.scale) << name;
        EXPECT_EQ(alone.values, seen.values) << name;
        EXPECT_EQ(alone.saturated, seen.saturated) << name;
        EXPECT_EQ(alone.lost, seen.lost) << name;
      }
    }
  }
}

// Every operand of every layer, each element once (at stage 0 every rank casts all weights).
TEST(Casts, OfAStepAreThoseOfAllOperands) {
  const model::Architecture a = options_of(RecipeKind::block, 0).architecture;
  const std::map<std::string, std::pair<std::int64_t, std::int64_t>> shapes{
      {"qkv", {a.heads.qkv_width(), a.hidden}},
      {"output", {a.hidden, a.heads.q_heads * a.heads.head_dim}},
      {"gate_up", {2 * a.intermediate, a.hidden}},
      {"down", {a.hidden, a.intermediate}}};
  for (const RecipeKind kind : kRecipes) {
    for (const int stage : {0, 1, 3}) {
      const Trained trained = train(kind, stage, 2, always);
      for (const Rows& rows : trained.rows) {
        EXPECT_EQ(rows.size(), 2 * 4 * 3u);
        for (const int layer : {0, 1}) {
          for (const auto& [gemm_kind, shape] : shapes) {
            const std::string name = "layers." + std::to_string(layer) + "." + gemm_kind;
            const auto values = [&](const char* operand) {
              return static_cast<std::int64_t>(rows.at(name + operand).values);
            };
            const std::int64_t tokens = 2 * 2 * 24, weight = shape.first * shape.second;
            EXPECT_EQ(values("/input"), tokens * shape.second) << name;
            EXPECT_EQ(values("/output_gradient"), tokens * shape.first) << name;
            // With block scaling each micro-batch casts weights; otherwise the owner casts them.
            const std::int64_t casts = kind == RecipeKind::block ? 4 : stage == 0 ? 2 : 1;
            EXPECT_EQ(values("/weight"), casts * weight) << name << " stage " << stage;
          }
        }
        for (const auto& [name, seen] : rows) {
          EXPECT_GT(seen.amax, 0) << name;
          EXPECT_GT(seen.scale, 0) << name;
          EXPECT_LE(seen.lost + seen.saturated, seen.values) << name;
        }
      }
    }
  }
}

// Stages, and ranks that hold parts of weights, report the same weights.
TEST(Casts, OfWeightsAreThoseThatTheStepRead) {
  for (const RecipeKind kind : {RecipeKind::delayed, RecipeKind::current}) {
    const Trained whole = train(kind, 0, 1, always, 0.0), cut = train(kind, 3, 3, always, 0.0);
    for (const auto& [name, seen] : whole.rows[0]) {
      if (!name.ends_with("/weight")) continue;
      for (const Rows& rows : {whole.rows[2], cut.rows[0], cut.rows[2]}) {
        const ops::Fp8Seen& other = rows.at(name);
        EXPECT_EQ(other.amax, seen.amax) << name;
        EXPECT_EQ(other.scale, seen.scale) << name;
        EXPECT_EQ(other.lost, seen.lost) << name;
        EXPECT_EQ(other.values, seen.values) << name;
      }
      // The scale is that of the largest magnitude, and no value exceeds it.
      if (kind == RecipeKind::delayed) {
        EXPECT_EQ(seen.scale, 448.0f / seen.amax) << name;
      }
      EXPECT_EQ(seen.saturated, 0u) << name;
    }
    // The learning rate changes weights, and the next step reports the changed weights.
    const Trained moved = train(kind, 0, 1, always, 0.05);
    EXPECT_EQ(moved.rows[0].at("layers.0.qkv/weight").amax, whole.rows[0].at("layers.0.qkv/weight").amax);
    EXPECT_NE(moved.rows[1].at("layers.0.qkv/weight").amax, whole.rows[0].at("layers.0.qkv/weight").amax);
  }
}

// Delayed scaling starts with scale 1, so the small gradients of the first step are lost.
TEST(Casts, TellWhatAStepLost) {
  const Trained delayed = train(RecipeKind::delayed, 0, 1, always);
  const ops::Fp8Seen& first = delayed.rows[0].at("layers.0.qkv/output_gradient");
  EXPECT_EQ(first.scale, 1.0f);
  EXPECT_GT(first.lost, 0u);
  EXPECT_LT(delayed.rows[2].at("layers.0.qkv/output_gradient").lost, first.lost);
}

ops::Fp8Seen seen(float amax, float scale, std::uint64_t saturated, std::uint64_t lost) {
  return {.amax = amax, .scale = scale, .values = 8, .saturated = saturated, .lost = lost};
}

TEST(CastLog, AddsRanksAndParts) {
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, comm::Collectives&, Device&) {
    const bool first = job.rank() == 0;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<precision::CastRow> own{
        {"layers.0.qkv/weight", first ? seen(3, 2, 1, 2) : seen(4, 1, 0, 1)},
        {"layers.0.qkv/weight", first ? ops::Fp8Seen{} : seen(2, 8, 0, 4)},
        {"layers.1.qkv/weight", first ? seen(nan, 1, 0, 0) : seen(5, 1, 0, 0)}};
    const auto all = casts_of_all(job, own);
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].seen.amax, 4);
    EXPECT_EQ(all[0].seen.scale, 1);
    EXPECT_EQ(all[0].seen.values, 24u);
    EXPECT_EQ(all[0].seen.saturated, 1u);
    EXPECT_EQ(all[0].seen.lost, 7u);
    EXPECT_TRUE(std::isnan(all[1].seen.amax));
  });
}

TEST(CastLog, HasTheWorstLayerAndAllOfThem) {
  const CastFields fields =
      cast_fields({{"layers.0.qkv/input", seen(0.1f, 2, 0, 1)},
                   {"layers.0.qkv/output_gradient", ops::Fp8Seen{}},
                   {"layers.1.qkv/input", seen(std::numeric_limits<float>::infinity(), 1, 2, 1)},
                   {"layers.2.qkv/input", seen(7, 64, 0, 2)}});
  const Json worst = parse_json(
      R"({"qkv": {"input": {"amax": null, "scale": 1.0, "saturated": 0.25, "lost": 0.125, "layer": 1}}})",
      "test");
  const Json layers = parse_json(
      R"({"qkv": {"input": {"amax": [0.1, null, 7.0], "scale": [2.0, 1.0, 64.0],
                            "saturated": [0.0, 0.25, 0.0], "lost": [0.125, 0.125, 0.25]}}})",
      "test");
  EXPECT_EQ(fields.worst, worst) << fields.worst.dump();
  EXPECT_EQ(fields.layers, layers) << fields.layers.dump();
}

}  // namespace
}  // namespace octet::train::casts_test
