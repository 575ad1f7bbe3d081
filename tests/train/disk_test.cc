// The predicted disk use of a run, compared with checkpoints that engines saved.
#include "octet/train/disk.h"
#include "octet/config/config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "../src/train/start.h"
#include "octet/base/json.h"
#include "octet/comm/thread_ranks.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"
#include "octet/train/fit.h"
#include "support/temporary_folder.h"

namespace octet::train::disk_test {
namespace {

model::Architecture tiny() {
  model::Architecture a = model::find_shape("tiny");
  a.layers = 2;
  a.blocks.resize(2);
  a.vocabulary = 256;
  return a;
}

struct Case {
  const char* name = "";
  config::Config config;
};

std::vector<Case> cases() {
  std::vector<Case> all(8);
  for (Case& c : all) c.config.deterministic = "true";
  all[0].name = "fp32";
  all[1].name = "bf16";
  all[1].config.pure_bf16 = all[1].config.bf16 = true;
  all[1].config.param_dtype = all[1].config.grad_dtype = all[1].config.optim_dtype = "bf16";
  all[2].name = "moments in 8 bits";
  all[2].config.optim_dtype = "int8";
  all[3].name = "delayed FP8 scales";
  all[3].config.bf16 = all[3].config.fp8 = true;
  all[3].config.fp8_amax_history_len = 4;
  all[4].name = "what narrow wires lost";
  all[4].config.reduce_dtype = "int8";
  all[4].config.error_feedback = true;
  all[5].name = "LoRA";
  all[5].config.finetuning_type = "lora";
  all[5].config.lora_rank = 4;
  all[5].config.additional_target = {"embed_tokens"};
  all[6].name = "DoRA, moments in 8 bits";
  all[6].config.finetuning_type = "lora";
  all[6].config.use_dora = true;
  all[6].config.optim_dtype = "int8";
  all[7].name = "freeze";
  all[7].config.finetuning_type = "freeze";
  all[7].config.freeze_trainable_layers = 1;
  all[7].config.freeze_trainable_modules = {"mlp"};
  return all;
}

/// Saves the state of engines on `ranks` ranks, and compares.
void expect_foretold(const Case& c, int ranks, std::int64_t stage) {
  const test::TemporaryFolder folder("disk");
  config::Config config = c.config;
  config.zero_stage = stage;
  const std::string yaml = "seed: 1\n";
  std::vector<weights::TensorHeader> tensors, planned;
  comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    const runtime::InstanceOptions options = setup::instance_options(config, tiny(), 64, 64, 3);
    Engine engine(device, job, data, options);
    engine.initialise(3);
    checkpoint::CheckpointContents contents{.step = 12, .zero_stage = static_cast<int>(stage)};
    contents.slices = state_slices(engine);
    contents.config_yaml = yaml;
    contents.state = Json{{"step", 12}};
    checkpoint::save(job, folder.path(), contents);
    if (job.rank() != ranks - 1) return;  // this rank has no scales
    tensors = engine.checkpoint_tensors();
    planned = checkpoint_tensors(options, job.place(), DeviceKind::cpu);
  });
  const checkpoint::Checkpoint saved(folder / "checkpoint-12");
  ASSERT_EQ(tensors.size(), saved.tensors().size()) << c.name;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].name, saved.tensors()[i].name) << c.name;
    EXPECT_EQ(tensors[i].shape, saved.tensors()[i].shape) << c.name << " " << tensors[i].name;
    EXPECT_EQ(tensors[i].dtype, saved.tensors()[i].dtype) << c.name << " " << tensors[i].name;
  }
  const RunFiles files = files_of_run(
      config, tiny(), {.tensors = planned, .config_yaml = yaml, .adapters = {}, .step = 12, .world = ranks});
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(saved.path()))
    bytes += static_cast<std::int64_t>(entry.file_size());
  EXPECT_EQ(files.checkpoint.all(), bytes) << c.name << ", " << ranks << " ranks, stage " << stage;
}

TEST(DiskOfARun, ACheckpointHasTheBytesThatWereForetold) {
  for (const Case& c : cases()) {
    expect_foretold(c, 1, 0);
    for (const std::int64_t stage : {0, 1, 2, 3}) expect_foretold(c, 2, stage);
    expect_foretold(c, 3, 3);
  }
}

// A run that trains everything or a part exports the whole model. A run that trains adapters exports only
// adapters.
TEST(DiskOfARun, AFinalModelOfAShapeHasTheBytesOfItsParameters) {
  const auto weights = [](const config::Config& config) {
    return files_of_run(config, tiny(),
                        {.tensors = checkpoint_tensors(setup::instance_options(config, tiny(), 64, 64, 3),
                                                       comm::Place{}, DeviceKind::cpu),
                         .config_yaml = {},
                         .adapters = {}})
        .model_weights;
  };
  std::vector<Case> all = cases();
  const std::int64_t elements = model::build_layout(tiny()).parameter_count();
  constexpr std::int64_t kHeader = 8 << 10;
  for (const std::size_t i : {0u, 7u}) {
    all[i].config.export_dtype = "fp32";
    const std::int64_t wide = weights(all[i].config);
    EXPECT_GT(wide, 4 * elements) << all[i].name;
    EXPECT_LT(wide, 4 * elements + kHeader) << all[i].name;
    all[i].config.export_dtype = "bf16";
    EXPECT_LT(weights(all[i].config), 2 * elements + kHeader) << all[i].name;
  }
  config::Config lora = all[5].config;
  lora.additional_target.clear();
  const std::int64_t adapters = weights(lora);
  lora.lora_rank *= 2;
  EXPECT_NEAR(static_cast<double>(weights(lora)) / static_cast<double>(adapters), 2, 0.4);
  EXPECT_LT(adapters, 4 * elements / 5);
}

TEST(DiskOfARun, CheckpointsAreThoseThatSaveTotalLimitLeaves) {
  config::Config config;
  const auto count = [&](std::int64_t saves, std::int64_t there = 0) {
    const CheckpointCount c = checkpoints_of_run(config, saves, there);
    return std::pair(c.most, c.at_end);
  };
  EXPECT_EQ(count(10), std::pair(10L, 10L));
  config.save_total_limit = 2;
  EXPECT_EQ(count(10), std::pair(3L, 2L)) << "a new one is whole before an old one goes";
  EXPECT_EQ(count(2), std::pair(2L, 2L));
  EXPECT_EQ(count(1), std::pair(1L, 1L));
  EXPECT_EQ(count(10, 2), std::pair(1L, 0L));
  EXPECT_EQ(count(10, 7), std::pair(1L, 0L));
  config.load_best_model_at_end = true;
  EXPECT_EQ(count(10), std::pair(4L, 3L)) << "the best one stays beside them";
}

}  // namespace
}  // namespace octet::train::disk_test
