// Models with experts, through the program: they answer, and are trained on CPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "cli/safetensors_contents.h"
#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::experts_test {
namespace {

namespace fs = std::filesystem;

const std::string kModel = OCTET_SOURCE_DIR "/tests/golden/models/qwen3-moe";

TEST(ExpertModels, AnswerIdsOnAnyRanks) {
  const TemporaryFolder folder("expert_answers");
  const Json reference =
      parse_json(slurp(OCTET_SOURCE_DIR "/tests/golden/generate/qwen3-moe.json"), "qwen3-moe.json");
  std::string rows;
  for (const Json& one : reference["greedy"]) rows += Json{{"prompt_ids", one["prompt_ids"]}}.dump() + "\n";
  spill(folder / "in.jsonl", rows);
  for (const int np : {0, 2, 3}) {
    const std::string out = folder / ("out-" + std::to_string(np) + ".jsonl");
    const Outcome run = trainer("generate " + kModel + " --file " + (folder / "in.jsonl") + " --out " + out +
                                    " --max-new 40 --max-length 128 --batch 2 --dtype fp32 --device cpu",
                                np);
    ASSERT_EQ(run.code, 0) << run.both();
    const auto lines = split(slurp(out), '\n');
    for (std::size_t i = 0; i < reference["greedy"].size(); ++i) {
      EXPECT_EQ(parse_json(lines.at(i), out)["output_ids"], reference["greedy"][i]["output_ids"])
          << "np " << np << ", row " << i;
    }
  }
}

// The format of Qwen3-30B-A3B-FP8: the blocks' matrices have block-wise scales, and the router does not.
TEST(ExpertModels, AnswerFromFoldersInFp8) {
  const TemporaryFolder folder("expert_fp8");
  const auto [fp8, decoded] = write_fp8_folders(kModel, folder.path(), ".mlp.gate.");
  spill(folder / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n{\"prompt_ids\": [9, 8, 7]}\n");
  for (const std::string dtype : {"fp32", "bf16", "fp8"}) {
    std::vector<std::string> answers;
    for (const std::string& model : {fp8, decoded, kModel}) {
      const std::string out = folder / "out.jsonl";
      const Outcome run = trainer(
          "generate " + model + " --file " + (folder / "in.jsonl") + " --out " + out +
          " --overwrite --max-new 12 --max-length 64 --logprobs 2 --ignore-eos --device cpu --dtype " +
          dtype);
      ASSERT_EQ(run.code, 0) << run.both();
      answers.push_back(slurp(out));
    }
    EXPECT_EQ(answers[0], answers[1]) << dtype;
    EXPECT_NE(answers[0], answers[2]) << "codes are not the weights";
  }
}

/// The quickstart's task for a mixture of four experts; each token uses two.
class ExpertTraining : public testing::Test {
 protected:
  ExpertTraining() : folder_("expert_training") {
    fs::copy(Task::get().model(), model_);
    Json config = parse_json(slurp(model_ + "/config.json"), "config.json");
    config["model_type"] = "qwen3_moe";
    config["architectures"] = {"Qwen3MoeForCausalLM"};
    config.update(Json{{"num_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 16},
                       {"norm_topk_prob", true},
                       {"output_router_logits", true},
                       {"router_aux_loss_coef", 0.02}});
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
  /// Copies the reference of a mixture, and changes its tensors.
  std::string changed(const std::string& name, const std::function<void(Contents&)>& change) const {
    const std::string folder = folder_ / name;
    fs::copy(OCTET_SOURCE_DIR "/tests/golden/models/qwen3-moe-trained", folder);
    Contents contents(folder + "/model.safetensors");
    change(contents);
    contents.write(folder + "/model.safetensors");
    return folder;
  }

  TemporaryFolder folder_;
  std::string model_ = folder_ / "model";
};

TEST_F(ExpertTraining, LearnsWithTheSameBitsAtEveryStage) {
  const std::string reference = last("stage0", "zero_stage=0", 2);
  for (const std::string stage : {"1", "2", "3"})
    expect_identical(reference, last("stage" + stage, "zero_stage=" + stage, 2));
  const auto steps = steps_of(folder_ / "stage0");
  EXPECT_LT(steps.at(12)["loss"].get<double>(), 0.9 * steps.at(1)["loss"].get<double>());
  const Json& load = steps.at(1)["experts"];
  EXPECT_EQ(load["blocks"], Json::array({0, 1}));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_GE(load["largest"][i].get<double>(), 1);
    EXPECT_LE(load["smallest"][i].get<double>(), 1);
    EXPECT_GT(load["entropy"][i].get<double>(), 0.5);
    EXPECT_LE(load["entropy"][i].get<double>(), 1 + 1e-9);
  }
}

TEST_F(ExpertTraining, StrictHasTheSameBitsOnOneTwoAndFourRanks) {
  for (const std::string recipe : {"bf16=false", "bf16=true fp8=true fp8_recipe=current"}) {
    const std::string options = recipe + " deterministic=strict gradient_accumulation_steps=";
    const std::string small = " global_batch_size=null per_device_train_batch_size=2 ";
    const std::string reference = last("one", options + "4" + small, 1);
    expect_identical(reference, last("two", options + "2" + small + "zero_stage=3", 2));
    expect_identical(reference, last("four", options + "1" + small + "zero_stage=1", 4));
    for (const char* name : {"one", "two", "four"}) fs::remove_all(folder_ / name);
  }
}

TEST_F(ExpertTraining, AKilledRunResumesAtAnotherStageInTheSameBits) {
  const std::string whole = last("whole", "zero_stage=1", 2);
  const Outcome killed =
      shell("OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_SOURCE_DIR "/launch/mpirun -np 2 " +
            std::string(OCTET_TRAINER) + " " + train("killed", "zero_stage=1"));
  EXPECT_NE(killed.code, 0);
  ASSERT_TRUE(fs::exists(folder_ / "killed/checkpoint-5")) << killed.both();
  expect_identical(whole, last("killed", "zero_stage=3", 2));
}

TEST_F(ExpertTraining, RunsInFp8WithEachRecipe) {
  last("bf16", "bf16=true", 0);
  const double reference = steps_of(folder_ / "bf16").at(12)["loss"].get<double>();
  for (const std::string recipe : {"delayed", "current", "block"}) {
    last(recipe, "bf16=true fp8=true zero_stage=3 fp8_recipe=" + recipe, 2);
    EXPECT_NEAR(steps_of(folder_ / recipe).at(12)["loss"].get<double>() / reference, 1, 0.05) << recipe;
  }
}

// The model of a run is readable under Hugging Face's names, for further training and for answers.
TEST_F(ExpertTraining, AFinishedModelIsReadAgain) {
  last("first", "", 0);
  const checkpoint::SafetensorsFile file(folder_ / "first/model.safetensors");
  EXPECT_EQ(file.at("model.layers.1.mlp.experts.3.up_proj.weight").shape,
            (std::vector<std::int64_t>{16, 32}));
  EXPECT_EQ(file.at("model.layers.0.mlp.gate.weight").shape, (std::vector<std::int64_t>{4, 32}));
  const Outcome second =
      trainer("train " + Task::get().config() + " model_name_or_path=" + (folder_ / "first") +
              " train_from_scratch=false device=cpu max_steps=1 output_dir=" + (folder_ / "second"));
  expect_success(second);
  EXPECT_LT(steps_of(folder_ / "second").at(1)["loss"].get<double>(),
            steps_of(folder_ / "first").at(1)["loss"].get<double>());
  spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
  expect_success(trainer("generate " + (folder_ / "first") + " --file " + (folder_ / "in.jsonl") + " --out " +
                         (folder_ / "out.jsonl") + " --max-new 4 --max-length 64 --device cpu"));
}

TEST_F(ExpertTraining, WrongWeightsAreRefusedByName) {
  const std::string router = "model.layers.0.mlp.gate.weight";
  const std::string expert = "model.layers.2.mlp.experts.3.down_proj.weight";
  struct Row {
    std::function<void(Contents&)> change;
    std::vector<std::string> said;
  };
  const Row rows[] = {
      {[&](Contents& c) { c.all.erase(router); }, {"tensor '" + router + "' is missing"}},
      {[&](Contents& c) { c.all.at(router).bytes.replace(6, 2, "\xc0\x7f"); },
       {"a weight is not finite", router, "a router must be finite"}},
      {[&](Contents& c) {
         Contents::Tensor& t = c.all.at(expert);
         t.shape[1] -= 1;
         t.bytes.resize(static_cast<std::size_t>(t.shape[0] * t.shape[1]) * size_of(t.dtype));
       },
       {"tensor '" + expert + "' has the wrong shape", "[32, 16]", "[32, 15]"}},
  };
  int number = 0;
  for (const Row& row : rows) {
    const std::string folder = changed("wrong" + std::to_string(number++), row.change);
    spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
    const Outcome run = trainer("generate " + folder + " --file " + (folder_ / "in.jsonl") + " --out " +
                                (folder_ / "out.jsonl") + " --max-new 1 --max-length 64 --device cpu");
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    for (const std::string& said : row.said)
      EXPECT_NE(run.err.find(said), std::string::npos) << said << "\n" << run.err;
  }
}

TEST_F(ExpertTraining, MoreExpertsThanThereAreAreRefused) {
  Json config = parse_json(slurp(model_ + "/config.json"), "config.json");
  config["num_experts_per_tok"] = 5;
  spill(model_ + "/config.json", config.dump());
  const Outcome run = trainer(train("out"));
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.both();
  EXPECT_NE(run.err.find("num_experts_per_tok of at most 4"), std::string::npos) << run.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(ExpertTraining, AdaptersOfAttentionAndOfExpertsTrainAndMerge) {
  last("base", "", 0);
  const std::string base = folder_ / "base";
  for (const std::string target : {"q_proj,k_proj,v_proj,o_proj", "all"}) {
    const std::string out = "lora_" + std::to_string(target.size());
    const std::string options =
        "model_name_or_path=" + base +
        " train_from_scratch=false finetuning_type=lora lora_rank=4 max_steps=4 lora_target=" + target;
    const std::string reference = folder_ / (out + "/checkpoint-4");
    expect_success(trainer(train(out, options + " zero_stage=0"), 2));
    expect_success(trainer(train(out + "_3", options + " zero_stage=3"), 2));
    expect_identical(reference, folder_ / (out + "_3/checkpoint-4"));
    const checkpoint::SafetensorsFile adapter(folder_ / (out + "/adapter_model.safetensors"));
    const std::string on_expert = "base_model.model.model.layers.0.mlp.experts.2.up_proj.lora_B.weight";
    EXPECT_EQ(adapter.find(on_expert) != nullptr, target == "all");
    EXPECT_EQ(adapter.find("base_model.model.model.layers.0.mlp.gate.weight"), nullptr) << "it is frozen";
    const std::string merged = folder_ / (out + "_merged");
    expect_success(trainer("export " + (folder_ / out) + " " + merged + " --merge"));
    // The merged model has the loss of base and adapter.
    spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2, 9, 8, 30]}\n");
    std::vector<double> found;
    for (const std::string& model : {merged, folder_ / out}) {
      const std::string answers = folder_ / "out.jsonl";
      expect_success(
          trainer("generate " + model + " --file " + (folder_ / "in.jsonl") + " --out " + answers +
                  " --overwrite --max-new 1 --max-length 64 --logprobs 1 --ignore-eos --dtype fp32 "
                  "--device cpu"));
      found.push_back(parse_json(split(slurp(answers), '\n').at(0), answers)["logprobs"][0].get<double>());
    }
    EXPECT_NEAR(found[0], found[1], 2e-3) << target;
  }
}

TEST_F(ExpertTraining, RoutersAreTrainedBesideAdaptersByKey) {
  last("base", "", 0);
  const std::string options = "model_name_or_path=" + (folder_ / "base") +
                              " train_from_scratch=false finetuning_type=lora lora_rank=4 max_steps=2 "
                              "lora_target=q_proj additional_target=gate";
  expect_success(trainer(train("lora", options)));
  const checkpoint::SafetensorsFile adapter(folder_ / "lora/adapter_model.safetensors");
  EXPECT_NE(adapter.find("base_model.model.model.layers.1.mlp.gate.weight"), nullptr);
  for (const std::string more : {"lora_dropout=0.1", "use_dora=true"}) {
    const Outcome run = trainer(train("refused", options + " lora_target=all " + more));
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_NE(run.err.find("on experts is not built"), std::string::npos) << run.err;
  }
}

TEST_F(ExpertTraining, ArePlannedAndTimed) {
  const Outcome plan = trainer("plan qwen3-30b-a3b device=cuda card=h200 world=8 zero_stage=3");
  EXPECT_EQ(plan.code, 0) << plan.both();
  const Outcome cpu = trainer("plan " + model_ + " device=cpu");
  EXPECT_EQ(cpu.code, 0) << cpu.both();
  const Outcome generated = trainer("plan " + model_ + " --generate device=cpu");
  EXPECT_EQ(generated.code, 0) << generated.both();
  const Outcome bench =
      trainer("bench " + model_ + " device=cpu --steps 2 --warmup 1 cutoff_len=64 --profile true");
  expect_success(bench);
  for (const char* row : {"forward, experts", "dgrad, experts", "wgrad, experts", "routing of tokens"})
    EXPECT_NE(bench.out.find(row), std::string::npos) << row << bench.out;
}

}  // namespace
}  // namespace octet::test::experts_test
