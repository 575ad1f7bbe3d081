// Whole training steps on the GPU. Recomputation changes no bit, and the GPU uses the memory that was planned
// on a machine without a GPU.
#include <gtest/gtest.h>

#include <map>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/feed/loader.h"
#include "octet/model/shapes.h"
#include "octet/train/fit.h"

namespace octet::train::levels_test {
namespace {

constexpr std::int64_t kLength = 96;

runtime::InstanceOptions options_of(precision::RecipeKind kind) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.store.recipe.kind = kind;
  o.store.recipe.compute = DType::bf16;
  o.store.deterministic = o.reproducible.emplace(true);
  o.transformer.max_tokens = 2 * kLength;
  o.transformer.max_length = kLength;
  o.max_documents = 2;
  o.max_micro_batches = 2;
  return o;
}

runtime::HostBatch batch_of(std::int32_t seed) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (std::int32_t row = 0; row < 2; ++row) {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < kLength; ++i) ids.push_back((i * 37 + row * 101 + seed * 977) % 4096);
    runtime::add_document(batch, ids, ids);
  }
  return batch;
}

/// Returns losses and norms of three steps of two micro-batches each.
std::vector<double> train(Device& device, const runtime::InstanceOptions& options) {
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), device, comm::Carrier::automatic);
  Engine engine(device, *job, *data, options);
  engine.initialise(5);
  std::vector<double> found;
  for (std::int32_t step = 0; step < 3; ++step) {
    engine.begin(2);
    for (std::int32_t micro = 0; micro < 2; ++micro) engine.micro_batch(batch_of(micro));
    const store::StepResult result = engine.finish(1e-3);
    found.insert(found.end(), {result.loss_sum, result.grad_norm});
  }
  return found;
}

TEST(Levels, GiveTheSameBitsOnTheGpu) {
  const std::unique_ptr<Device> gpu = make_cuda_device();
  using precision::RecipeKind;
  for (const RecipeKind kind : {RecipeKind::none, RecipeKind::current, RecipeKind::delayed}) {
    const std::vector<double> expected = train(*gpu, options_of(kind));
    EXPECT_LT(expected[4], expected[0]) << "the model learns";
    for (const model::Recompute level : plan::kRecompute) {
      for (const bool at_use : {false, true}) {
        SCOPED_TRACE(plan::keys_of({level, at_use}));
        EXPECT_EQ(train(*gpu, with_level(options_of(kind), {level, at_use})), expected);
      }
    }
  }
}

// Forward GEMMs are equal, so the first loss is equal; its gradient is not.
TEST(FastAccumulation, OfGradientsIsWhatTheRecipeSays) {
  const std::unique_ptr<Device> gpu = make_cuda_device();
  for (const auto kind : {precision::RecipeKind::current, precision::RecipeKind::delayed}) {
    runtime::InstanceOptions options = options_of(kind);
    const std::vector<double> promoted = train(*gpu, options);
    options.store.recipe.fast_gradients = true;
    const std::vector<double> fast = train(*gpu, options);
    EXPECT_EQ(fast[0], promoted[0]);
    EXPECT_NE(fast[1], promoted[1]);
    EXPECT_NEAR(fast[1], promoted[1], 1e-2 * promoted[1]);
  }
}

TEST(Levels, AreReservedAsThePlanSays) {
  const std::unique_ptr<Device> gpu = make_cuda_device();
  for (const model::Recompute level : plan::kRecompute) {
    for (const bool at_use : {false, true}) {
      SCOPED_TRACE(plan::keys_of({level, at_use}));
      const runtime::InstanceOptions options =
          with_level(options_of(precision::RecipeKind::delayed), {level, at_use});
      const auto job = comm::make_self_job();
      const auto data = job->collectives(comm::Mesh(1).group("data", 0), *gpu, comm::Carrier::automatic);
      Engine engine(*gpu, *job, *data, options);
      std::map<std::string, std::size_t> real, planned;
      for (const plan::MemoryRow& row : plan::memory_of(engine.arena()).rows) real[row.name] = row.bytes;
      for (const plan::MemoryRow& row : plan_memory(options, {}, DeviceKind::cuda).rows) {
        planned[row.name] = row.bytes;
      }
      EXPECT_EQ(planned, real);
    }
  }
}

}  // namespace
}  // namespace octet::train::levels_test
