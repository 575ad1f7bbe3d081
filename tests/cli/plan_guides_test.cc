// `trainer plan` of the guides' configurations with their models: gigabytes that follow from the number of
// parameters.
#include "cli/task.h"
#include "octet/base/files.h"
#include "octet/base/json.h"

namespace octet::test::plan_guides_test {
namespace {

Json plan_of(const std::string& arguments, int code = 0) {
  const Outcome run = trainer("plan --json " + arguments);
  EXPECT_EQ(run.code, code) << run.both();
  return parse_json(run.out, "standard output");
}

/// Returns the bytes that are kept between steps: parameters and their derived forms, gradients and moments.
double states_of(const Json& plan) {
  double sum = 0;
  for (const auto& [name, bytes] : plan["memory"].items()) {
    if (name.starts_with("parameters/") || name.starts_with("gradients") || name.starts_with("optimizer/"))
      sum += bytes.get<double>();
  }
  return sum;
}

std::string stored(const Json& plan) {
  return plan["param_dtype"].get<std::string>() + " " + plan["grad_dtype"].get<std::string>() + " " +
         plan["optim_dtype"].get<std::string>();
}

// Micro-batches of 6 x 4,096 on one GPU. Everything except the inputs of blocks is recomputed.
TEST(PlanOfGuides, LlamaOnOneGpuStoresWhatFits) {
  const std::string guide = OCTET_SOURCE_DIR
      "/tests/guides/llama3_fp8_single_gpu_sft.yaml device=cuda model_name_or_path=llama-3.1-8b "
      "optim_state_cpu_offload=false ";
  constexpr double kEmbedding = 128256.0 * 4096, kBlock = 4096.0 * (6144 + 4096 + 3 * 14336);
  constexpr double kFp8 = 32 * kBlock, kAll = 2 * kEmbedding + kFp8 + 65 * 4096;
  constexpr double kInputs = 32.0 * 6 * 4096 * 4096 * 2, kMomentBlock = 128;

  const Json wide = plan_of(guide + "memory=96GB param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32", 1);
  EXPECT_EQ(wide["parameters"].get<double>(), kAll);
  EXPECT_EQ(wide["memory"]["activations/block inputs"].get<double>(), kInputs);
  // Embedding and head are read in bf16. FP8 weights are stored once and transposed at use.
  EXPECT_NEAR(states_of(wide) / (16 * kAll + kFp8 + 2 * 2 * kEmbedding), 1, 0.003);
  EXPECT_NEAR(wide["total_bytes"].get<double>() / 0x1p30, 144.2, 0.1);
  EXPECT_FALSE(wide["fits"].get<bool>());

  const Json at96 = plan_of(guide + "memory=96GB");
  EXPECT_EQ(stored(at96), "bf16 bf16 bf16");
  EXPECT_NEAR(states_of(at96) / (8 * kAll + 2 * kFp8), 1, 0.001)
      << "FP8 weights and their transposes are kept";
  EXPECT_NEAR(at96["total_bytes"].get<double>() / 0x1p30, 88.7, 0.1);

  const Json at80 = plan_of(guide + "memory=80GB");
  EXPECT_EQ(stored(at80), "bf16 bf16 int8");
  EXPECT_NEAR(states_of(at80) / ((6 + 2 * 4 / kMomentBlock) * kAll + 2 * kFp8), 1, 0.001);
  // Only the storage of moments differs.
  EXPECT_NEAR(at96["total_bytes"].get<double>() - at80["total_bytes"].get<double>(),
              (2 - 2 * 4 / kMomentBlock) * kAll, 1e-3 * kAll);

  // With the guide's own settings, the optimizer's state is in host memory, in fp32.
  const Json away = plan_of(guide + "memory=80GB optim_state_cpu_offload=true");
  EXPECT_EQ(stored(away), "fp32 fp32 fp32");
  double pinned = 0;
  for (const auto& [name, bytes] : away["pinned_memory"].items()) {
    if (name == "parameters/master" || name.starts_with("optimizer/")) pinned += bytes.get<double>();
  }
  EXPECT_NEAR(pinned / (12 * kAll), 1, 0.001);
  EXPECT_NEAR(away["total_bytes"].get<double>() / 0x1p30, 60.9, 0.1);
}

// strategy: fsdp2 shards everything, unlike stage 0.
TEST(PlanOfGuides, VerlWithFsdp2SharesStatesOut) {
  const TemporaryFolder folder("verl");
  write_file_atomically(folder / "config.json",
                        R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560,
                 "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": true,
                 "rms_norm_eps": 1e-6, "rope_theta": 1000000, "max_position_embeddings": 40960,
                 "hidden_act": "silu", "attention_bias": false})");
  const std::string guide = std::string(OCTET_SOURCE_DIR "/tests/guides/verl_sft_trainer.yaml") +
                            " model.partial_pretrain=" + folder.path() + " card=h100 world=8 ";
  constexpr double kBlock = 2560.0 * (32 + 2 * 8 + 32) * 128 + 3 * 2560.0 * 9728 + 2 * 2560 + 2 * 128;
  constexpr double kAll = 151936.0 * 2560 + 36 * kBlock + 2560;

  const Json meant = plan_of(guide);
  EXPECT_EQ(meant["parameters"].get<double>(), kAll);
  EXPECT_EQ(meant["zero_stage"], 3);
  EXPECT_EQ(stored(meant), "fp32 fp32 fp32") << "model_dtype";
  const auto row = [&](const char* name) { return meant["memory"][name].get<double>(); };
  for (const char* name :
       {"parameters/master", "gradients/sums", "optimizer/exp_avg", "optimizer/exp_avg_sq"})
    EXPECT_NEAR(row(name) / (4 * kAll / 8), 1, 0.001) << name;
  EXPECT_NEAR(row("parameters/copies") / (2 * kAll / 8), 1, 0.001);
  EXPECT_NEAR(meant["total_bytes"].get<double>() / 0x1p30, 15.25, 0.1);

  const Json whole = plan_of(guide + "zero_stage=0");
  EXPECT_NEAR(states_of(whole) / ((16 + 2) * kAll), 1, 0.001);
  EXPECT_NEAR(whole["total_bytes"].get<double>() / 0x1p30, 70.95, 0.1);
}

}  // namespace
}  // namespace octet::test::plan_guides_test
