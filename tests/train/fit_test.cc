// A plan is the run's own reservations, by name and to the byte, at every stage and world size.
#include "octet/train/fit.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "octet/base/error.h"
#include "octet/model/shapes.h"

namespace octet::train {
namespace {

EngineOptions options_of(int stage, precision::RecipeKind kind, model::Recompute level) {
  EngineOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.layers = 3;
  o.architecture.blocks.resize(3);
  o.store.stage = stage;
  o.store.recipe.kind = kind;
  o.store.recipe.compute = DType::bf16;
  o.transformer.max_tokens = 96;
  o.transformer.max_length = 48;
  o.transformer.recompute = level;
  o.max_documents = 2;
  o.max_micro_batches = 3;
  return o;
}

using Rows = std::map<std::string, std::size_t>;

Rows rows_of(const plan::Memory& memory) {
  Rows rows;
  for (const plan::MemoryRow& row : memory.rows) rows[row.name] = row.bytes;
  return rows;
}

TEST(Plan, IsWhatEveryRankReserves) {
  for (const int world : {1, 2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const auto kind : {precision::RecipeKind::none, precision::RecipeKind::delayed}) {
        SCOPED_TRACE(std::to_string(world) + " ranks, stage " + std::to_string(stage));
        const EngineOptions options = options_of(stage, kind, model::Recompute::norms);
        std::mutex mutex;
        std::map<int, Rows> real;
        // What an op uses of scratch depends on the threads of a rank: the plan is made with as many.
        comm::run_ranks_as_threads({.ranks = world}, [&](comm::Communicator& communicator, Device& device) {
          Engine engine(device, communicator, options);
          const Rows planned = rows_of(plan_memory(options, communicator.place(), DeviceKind::cpu));
          {
            const std::lock_guard lock(mutex);
            real[communicator.rank()] = rows_of(plan::memory_of(engine.arena()));
            EXPECT_EQ(planned, real[communicator.rank()]);
          }
          communicator.barrier();
        });
        EXPECT_EQ(static_cast<int>(real.size()), world);
        EXPECT_GT(real[0].at("gradients"), 0u);
      }
    }
  }
}

TEST(Plan, OfAGpuHasTransposedWeightsAndNeedsNoGpu) {
  const EngineOptions options = options_of(0, precision::RecipeKind::delayed, model::Recompute::none);
  const Rows cpu = rows_of(plan_memory(options, {}, DeviceKind::cpu));
  const Rows gpu = rows_of(plan_memory(options, {}, DeviceKind::cuda));
  EXPECT_FALSE(cpu.contains("parameters/transposed"));
  EXPECT_GT(gpu.at("parameters/transposed"), 0u);
  EXPECT_EQ(gpu.at("parameters/master"), cpu.at("parameters/master"));
  EXPECT_GT(gpu.at("workspace"), cpu.at("workspace"));
}

Candidates candidates(std::vector<std::int64_t> micros) {
  return {.build =
              [](const plan::Choice& choice) {
                EngineOptions o = options_of(0, precision::RecipeKind::none, choice.recompute);
                o.transformer.max_tokens = choice.micro * 48;
                o.max_documents = choice.micro;
                return o;
              },
          .micros = std::move(micros),
          .levels = {std::begin(plan::kLevels), std::end(plan::kLevels)},
          .length = 48};
}

std::size_t bytes_of(const Candidates& c, const plan::Choice& choice) {
  return plan_memory(c.build(choice), {}, DeviceKind::cpu).bytes;
}

TEST(Choose, TakesTheCheapestLevelThatFits) {
  const Candidates c = candidates({64});
  using model::Recompute;
  std::size_t before = SIZE_MAX;
  for (const Recompute level : plan::kLevels) {
    const std::size_t bytes = bytes_of(c, {64, level});
    EXPECT_LT(bytes, before);
    before = bytes;
    EXPECT_EQ(choose(c, {}, DeviceKind::cpu, bytes), (plan::Choice{64, level}));
  }
  EXPECT_THROW(choose(c, {}, DeviceKind::cpu, before - 1), Error);
}

TEST(Choose, TakesNoMicroBatchThatDoesNotFit) {
  const Candidates c = candidates({1, 2, 4, 8, 16});
  const std::size_t limit = bytes_of(c, {4, model::Recompute::none});
  const plan::Choice choice = choose(c, {}, DeviceKind::cpu, limit);
  EXPECT_LE(bytes_of(c, choice), limit);
  EXPECT_GE(choice.micro, 4);
  EXPECT_EQ(choose(c, {}, DeviceKind::cpu, SIZE_MAX), (plan::Choice{16, model::Recompute::none}));
}

}  // namespace
}  // namespace octet::train
