// deterministic: strict applies to GEMMs: their bits do not depend on the number of threads.
#include <gtest/gtest.h>

#include "octet/base/files.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/device/cpu.h"
#include "octet/feed/loader.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"

namespace octet::train::strict_gemms_test {
namespace {

/// Returns a hash of all parameters, loss and norm after one step. The matrices are small and the batch is
/// long. So sums over tokens are split among threads, and the library splits them by the number of threads.
std::string step_with(int threads, const std::string& deterministic) {
  const auto device = make_cpu_device({.threads = threads});
  octet::cpu::set_op_threads(threads);
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  constexpr std::int64_t kTokens = 3000;
  model::Architecture architecture = model::find_shape("tiny");
  architecture.layers = 1;
  architecture.blocks.resize(1);
  config::Config config;
  config.deterministic = deterministic;
  Engine engine(*device, *job, *data,
                setup::instance_options(config, architecture, kTokens, 100, kTokens / 100));
  engine.initialise(7);
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (int document = 0; document < kTokens / 100; ++document) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 100; ++i) ids.push_back((i * 37 + 11 * document) % 1000);
    runtime::add_document(batch, ids, ids);
  }
  engine.begin(1);
  engine.micro_batch(batch);
  const store::StepResult result = engine.finish(1e-3);
  std::uint64_t hash = 0;
  for (const TensorSlice& s : engine.store().owned_slices()) {
    hash = hash64({static_cast<const char*>(s.data), static_cast<std::size_t>(s.count) * size_of(s.dtype)},
                  hash);
  }
  return std::to_string(hash) + " " + std::to_string(result.loss_sum) + " " +
         std::to_string(result.grad_norm);
}

TEST(StrictGemms, AnyNumberOfThreadsGivesTheSameBits) {
  const std::string one = step_with(1, "strict");
  EXPECT_EQ(step_with(1, "strict"), one) << "the sample is the same each time";
  for (const int threads : {2, 3, 5}) EXPECT_EQ(step_with(threads, "strict"), one) << threads << " threads";
}

}  // namespace
}  // namespace octet::train::strict_gemms_test
