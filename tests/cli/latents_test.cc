// Models with multi-head latent attention, through the program: training, resuming, adapters, answers.
#include <gtest/gtest.h>

#include "cli/adapter_task.h"
#include "cli/safetensors_contents.h"
#include "cli/task.h"
#include "octet/base/json.h"
#include "support/events.h"

namespace octet::test::latents_test {
namespace {

namespace fs = std::filesystem;

TEST(LatentModels, AreNotSplitAmongRanks) {
  const TemporaryFolder outer("latents");
  spill(outer / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
  const Outcome run = trainer("generate " OCTET_SOURCE_DIR "/tests/golden/models/deepseek-v3 --file " +
                              (outer / "in.jsonl") + " --out " + (outer / "out.jsonl") +
                              " --max-new 1 --max-length 64 --device cpu --tensor-parallel-size 2");
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.both();
  EXPECT_NE(run.err.find("multi-head latent attention"), std::string::npos) << run.err;
}

TEST(LatentModels, MissingTensorsAreRefused) {
  const TemporaryFolder outer("latents");
  const std::string folder = outer / "wrong";
  fs::copy(OCTET_SOURCE_DIR "/tests/golden/models/deepseek-v3", folder);
  spill(outer / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
  Contents contents(folder + "/model.safetensors");
  contents.all.erase("model.layers.1.self_attn.kv_a_layernorm.weight");
  contents.write(folder + "/model.safetensors");
  const Outcome run = trainer("generate " + folder + " --file " + (outer / "in.jsonl") + " --out " +
                              (outer / "out.jsonl") + " --max-new 1 --max-length 64 --device cpu");
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.both();
  EXPECT_NE(run.err.find("'model.layers.1.self_attn.kv_a_layernorm.weight' is missing"), std::string::npos)
      << run.err;
}

/// The quickstart's task for a small DeepSeek-V3. Its values are narrower than its keys. Runs before a
/// release only.
class WholeLatents : public testing::Test {
 protected:
  WholeLatents() : folder_("latents") {
    fs::copy(Task::get().model(), model_);
    Json config = parse_json(slurp(model_ + "/config.json"), "config.json");
    for (const char* key : {"head_dim", "num_key_value_heads", "mlp_bias"}) config.erase(key);
    config.update(Json{{"model_type", "deepseek_v3"},
                       {"architectures", {"DeepseekV3ForCausalLM"}},
                       {"q_lora_rank", 16},
                       {"kv_lora_rank", 16},
                       {"qk_nope_head_dim", 8},
                       {"qk_rope_head_dim", 8},
                       {"v_head_dim", 8},
                       {"n_routed_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 16},
                       {"n_group", 2},
                       {"topk_group", 1},
                       {"first_k_dense_replace", 1}});
    spill(model_ + "/config.json", config.dump());
  }
  std::string train(const std::string& out, const std::string& more = "") const {
    return Task::get().train(folder_ / out, "model_name_or_path=" + model_ + " device=cpu " + more);
  }
  /// Trains and returns the last checkpoint.
  std::string last(const std::string& out, const std::string& more, int np) const {
    const Outcome run = trainer(train(out, more), np);
    EXPECT_EQ(run.code, 0) << run.both();
    return folder_ / (out + "/checkpoint-12");
  }
  /// Returns the answer of a model to fixed tokens, with log-probabilities.
  std::string answer(const std::string& model, const std::string& more = "", int np = 1) const {
    spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
    expect_success(trainer("generate " + model + " --file " + (folder_ / "in.jsonl") + " --out " +
                               (folder_ / "out.jsonl") +
                               " --overwrite --max-new 6 --max-length 64 --ignore-eos --device cpu " + more,
                           np));
    return slurp(folder_ / "out.jsonl");
  }

  TemporaryFolder folder_;
  std::string model_ = folder_ / "model";
};

TEST_F(WholeLatents, LearnWithTheSameBitsAtEveryStageAndAnswer) {
  const std::string reference = last("stage0", "zero_stage=0", 2);
  expect_identical(reference, last("stage3", "zero_stage=3", 2));
  const auto steps = steps_of(folder_ / "stage0");
  EXPECT_LT(steps.at(12)["loss"].get<double>(), 0.95 * steps.at(1)["loss"].get<double>());
  const Contents saved(folder_ / "stage0/model.safetensors");
  const std::string block = "model.layers.1.";
  EXPECT_TRUE(saved.all.contains(block + "self_attn.kv_a_proj_with_mqa.weight"));
  EXPECT_TRUE(saved.all.contains(block + "self_attn.q_a_layernorm.weight"));
  EXPECT_TRUE(saved.all.contains(block + "mlp.gate.e_score_correction_bias"));
  EXPECT_EQ(answer(folder_ / "stage0"), answer(reference)) << "the model and its checkpoint";
  EXPECT_EQ(answer(folder_ / "stage0"), answer(folder_ / "stage0", "--pipeline-parallel-size 2", 2));
}

// Merged adapters on the matrices of latents give the answers of the adapters.
TEST_F(WholeLatents, AdaptersAreMerged) {
  expect_success(trainer(train("base", "max_steps=1")));
  expect_success(trainer(train("lora",
                               "max_steps=3 train_from_scratch=false finetuning_type=lora lora_rank=2 "
                               "learning_rate=0.05 "
                               "lora_target=q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj "
                               "model_name_or_path=" +
                                   (folder_ / "base"))));
  expect_success(trainer("export " + (folder_ / "lora/checkpoint-3") + " " + (folder_ / "merged") +
                         " --merge --export_dtype fp32"));
  EXPECT_NE(answer(folder_ / "base", "--logprobs 1"), answer(folder_ / "merged", "--logprobs 1"));
  EXPECT_EQ(answer(folder_ / "lora/checkpoint-3"), answer(folder_ / "merged"));
}

TEST_F(WholeLatents, AKilledRunResumesAtAnotherStageInTheSameBits) {
  const std::string whole = last("whole", "zero_stage=1", 2);
  const Outcome killed =
      shell("OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_SOURCE_DIR "/launch/mpirun -np 2 " +
            std::string(OCTET_TRAINER) + " " + train("killed", "zero_stage=1"));
  EXPECT_NE(killed.code, 0);
  ASSERT_TRUE(fs::exists(folder_ / "killed/checkpoint-5")) << killed.both();
  expect_identical(whole, last("killed", "zero_stage=3", 2));
}

TEST_F(WholeLatents, StrictHasTheSameBitsOnOneTwoAndFourRanks) {
  const std::string options = "deterministic=strict gradient_accumulation_steps=";
  const std::string small = " global_batch_size=null per_device_train_batch_size=2 ";
  const std::string reference = last("one", options + "4" + small, 1);
  expect_identical(reference, last("two", options + "2" + small + "zero_stage=3", 2));
  expect_identical(reference, last("four", options + "1" + small + "zero_stage=1", 4));
}

TEST_F(WholeLatents, RunInFp8WithEachRecipe) {
  last("bf16", "bf16=true", 0);
  const double reference = steps_of(folder_ / "bf16").at(12)["loss"].get<double>();
  for (const std::string recipe : {"delayed", "current", "block"}) {
    last(recipe, "bf16=true fp8=true zero_stage=3 fp8_recipe=" + recipe, 2);
    EXPECT_NEAR(steps_of(folder_ / recipe).at(12)["loss"].get<double>() / reference, 1, 0.05) << recipe;
  }
}

TEST_F(WholeLatents, AdaptersOnABaseIn4BitsComputeTheSameAtEachStage) {
  last("base", "", 0);
  const std::string keys = " device=cpu bf16=false finetuning_type=lora lora_rank=4 lora_target=all";
  const std::vector<float> whole = probed(folder_, folder_ / "base", keys);
  const std::vector<float> codes = probed(folder_, folder_ / "base", keys + " quantization_bit=4");
  EXPECT_GT(distance(codes, whole), 1e-3);
  EXPECT_LT(distance(codes, whole), 0.5);
  const std::vector<float> split =
      probed(folder_, folder_ / "base", keys + " quantization_bit=4 zero_stage=3", 2);
  EXPECT_LT(distance(split, codes), 1e-6);
}

}  // namespace
}  // namespace octet::test::latents_test
