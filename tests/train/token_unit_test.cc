// Micro-batches that are padded for a device train like unpadded ones.
#include <gtest/gtest.h>

#include "octet/device/cpu.h"
#include "octet/feed/loader.h"
#include "octet/model/shapes.h"
#include "octet/train/engine.h"

namespace octet::train::token_unit_test {
namespace {

runtime::HostBatch documents_of(const std::vector<int>& lengths) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (const int length : lengths) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < length; ++i) ids.push_back((i * 37 + length) % 1000);
    runtime::add_document(batch, ids, ids);
  }
  return batch;
}

/// Losses and gradient norms of three steps of two micro-batches, then the loss of an evaluation batch.
std::vector<double> steps_of(std::int64_t token_unit, precision::RecipeKind kind) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.layers = 2;
  o.architecture.blocks.resize(2);
  o.store.recipe.kind = kind;
  o.store.recipe.compute = DType::f32;
  o.transformer.max_tokens = 30;
  o.transformer.max_length = 9;
  o.max_documents = 3;
  o.max_micro_batches = 2;
  o.token_unit = token_unit;
  const auto device = make_cpu_device({.threads = 1});
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  Engine engine(*device, *job, *data, o);
  engine.initialise(7);
  std::vector<double> seen;
  for (int step = 0; step < 3; ++step) {
    engine.begin(2);
    engine.micro_batch(documents_of({5, 9, 3}));
    engine.micro_batch(documents_of({9, 7}));  // needs no padding
    const store::StepResult result = engine.finish(1e-3);
    seen.push_back(result.loss_sum);
    seen.push_back(result.grad_norm);
  }
  double loss = 0;
  std::int64_t labels = 0;
  engine.evaluate(documents_of({4, 9}), &loss, &labels);
  EXPECT_EQ(labels, 11);
  seen.push_back(loss);
  return seen;
}

TEST(TokenUnit, FillingUpChangesNoLossAndNoGradient) {
  const std::vector<double> alone = steps_of(1, precision::RecipeKind::none);
  const std::vector<double> filled = steps_of(16, precision::RecipeKind::none);
  ASSERT_EQ(alone.size(), filled.size());
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(filled[i], alone[i], 1e-5 * alone[i]) << i;
}

// The scales of activations may include the padding, so values round slightly differently.
TEST(TokenUnit, FillingUpMovesFp8ByLessThanItsRounding) {
  const std::vector<double> alone = steps_of(1, precision::RecipeKind::current);
  const std::vector<double> filled = steps_of(16, precision::RecipeKind::current);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(filled[i], alone[i], 2e-2 * alone[i]) << i;
}

}  // namespace
}  // namespace octet::train::token_unit_test
