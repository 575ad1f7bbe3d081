// Models with experts, through the program: they answer, and are trained on CPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cli/adapter_task.h"
#include "cli/safetensors_contents.h"
#include "cli/task.h"
#include "octet/base/json.h"
#include "octet/device/cpu.h"
#include "octet/ops/nf4.h"
#include "support/events.h"

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

/// Runs before a release only.
class WholeExpertTraining : public ExpertTraining {};

TEST_F(WholeExpertTraining, StrictHasTheSameBitsOnOneTwoAndFourRanks) {
  for (const std::string recipe : {"bf16=false", "bf16=true fp8=true fp8_recipe=current"}) {
    const std::string options = recipe + " deterministic=strict gradient_accumulation_steps=";
    const std::string small = " global_batch_size=null per_device_train_batch_size=2 ";
    const std::string reference = last("one", options + "4" + small, 1);
    expect_identical(reference, last("two", options + "2" + small + "zero_stage=3", 2));
    expect_identical(reference, last("four", options + "1" + small + "zero_stage=1", 4));
    for (const char* name : {"one", "two", "four"}) fs::remove_all(folder_ / name);
  }
}

TEST_F(WholeExpertTraining, AKilledRunResumesAtAnotherStageInTheSameBits) {
  const std::string whole = last("whole", "zero_stage=1", 2);
  const Outcome killed =
      shell("OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_SOURCE_DIR "/launch/mpirun -np 2 " +
            std::string(OCTET_TRAINER) + " " + train("killed", "zero_stage=1"));
  EXPECT_NE(killed.code, 0);
  ASSERT_TRUE(fs::exists(folder_ / "killed/checkpoint-5")) << killed.both();
  expect_identical(whole, last("killed", "zero_stage=3", 2));
}

TEST_F(WholeExpertTraining, RunsInFp8WithEachRecipe) {
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
  const weights::SafetensorsFile file(folder_ / "first/model.safetensors");
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

// The checkpoint of a run on two ranks with split experts is continued on four ranks, and on one.
TEST_F(WholeExpertTraining, SplitExpertsHaveTheCheckpointsOfARunWithoutSplit) {
  const std::string small = "bf16=false per_device_train_batch_size=3 ";
  const std::string reference = last("whole", small, 2);
  const std::string split = last("split", small + "expert_parallel_size=2", 2);
  expect_identical(reference, split);
  const Outcome same = trainer("inspect " + split + " --verify");
  EXPECT_EQ(same.code, 0) << same.both();
  const auto loss = [&](const std::string& folder) {
    return steps_of(folder_ / folder).at(12)["loss"].get<double>();
  };
  EXPECT_EQ(loss("split"), loss("whole"));
  Contents whole(folder_ / "whole/model.safetensors"), other(folder_ / "split/model.safetensors");
  ASSERT_EQ(whole.all.size(), other.all.size());
  for (const auto& [name, tensor] : whole.all) EXPECT_EQ(other.all.at(name).shape, tensor.shape) << name;
  for (const auto& [np, options] : std::vector<std::pair<int, std::string>>{
           {4, "expert_parallel_size=4 zero_stage=3"}, {1, "expert_parallel_size=1"}}) {
    const std::string again = folder_ / ("again" + std::to_string(np));
    fs::copy(folder_ / "split", again, fs::copy_options::recursive);
    for (const auto& entry : fs::directory_iterator(again)) {
      const std::string name = entry.path().filename();
      if (name == "checkpoint-12" || name.starts_with("model")) fs::remove_all(entry.path());
    }
    const Outcome run =
        trainer(train("again" + std::to_string(np), small + "overwrite_output_dir=false " + options), np);
    expect_success(run);
    EXPECT_NE(run.both().find("checkpoint-10"), std::string::npos) << run.both();
    EXPECT_NEAR(loss("again" + std::to_string(np)) / loss("whole"), 1, 1e-5);
  }
}

TEST_F(ExpertTraining, SplitsThatDoNotFitAreRefused) {
  struct Row {
    std::string options;
    int np;
    std::string said;
  };
  const Row rows[] = {
      {"expert_parallel_size=3", 3, "a divisor of the 4 experts of a block"},
      {"expert_parallel_size=2", 1, "a divisor of the number of ranks, 1"},
      {"expert_parallel_size=0", 2, "expert_parallel_size"},
      {"expert_parallel_size=2 error_feedback=true reduce_dtype=int8", 2, "together are not built"},
      {"expert_parallel_size=2 model_name_or_path=" + Task::get().model(), 2,
       "1 for a model without experts"},
  };
  for (const Row& row : rows) {
    const Outcome run =
        trainer(train("refused", "per_device_train_batch_size=1 global_batch_size=6 " + row.options), row.np);
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.both().find(row.said), std::string::npos) << row.said << "\n" << run.both();
  }
}

TEST_F(ExpertTraining, WrongValuesOfKeysOfExpertsAreRefused) {
  const std::string dense = " model_name_or_path=" + Task::get().model();
  const std::pair<std::string, std::string> rows[] = {
      {"router_z_loss_coef=-0.1", "a number of at least 0"},
      {"router_z_loss_coef=nan", "'router_z_loss_coef'"},
      {"moe_capacity_factor=0.0001", "a number of at least 0.001"},
      {"moe_capacity_factor=-1", "a number of at least 0.001"},
      {"moe_capacity_factor=1.25" + dense, "moe_capacity_factor: null for a model without experts"},
      {"router_z_loss_coef=0.001" + dense, "router_z_loss_coef: 0 for a model without experts"},
  };
  for (const auto& [options, said] : rows) {
    const Outcome run = trainer(train("refused", options), 2);
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.both().find(said), std::string::npos) << said << "\n" << run.both();
  }
}

TEST_F(ExpertTraining, TheLogHasTheShareOfDroppedRows) {
  const std::string more =
      "bf16=false moe_capacity_factor=0.5 max_steps=4 eval_strategy=steps eval_steps=2 val_size=0.1";
  expect_success(trainer(
      train("one", more + " zero_stage=0 report_to=tensorboard logging_dir=" + (folder_ / "tags")), 2));
  expect_success(trainer(train("two", more + " zero_stage=3"), 2));
  expect_identical(folder_ / "one/checkpoint-4", folder_ / "two/checkpoint-4");
  const Json load = steps_of(folder_ / "one").at(1)["experts"];
  for (std::size_t i = 0; i < 2; ++i) {
    // Each expert may take half of an even share, or one row more.
    EXPECT_GT(load["dropped"][i].get<double>(), 0.45);
    EXPECT_LE(load["dropped"][i].get<double>(), 0.5 + 1e-9);
  }
  int evaluations = 0;
  for (const std::string& line : split(slurp(folder_ / "one/trainer_log.jsonl"), '\n')) {
    if (line.find("eval_loss") == std::string::npos) continue;
    ++evaluations;
    const Json row = parse_json(line, "trainer_log.jsonl");
    EXPECT_EQ(row["eval_experts"]["blocks"], Json::array({0, 1}));
    EXPECT_EQ(row["eval_experts"]["dropped"], Json::array({0.0, 0.0})) << "evaluations drop nothing";
    EXPECT_GE(row["eval_experts"]["largest"][0].get<double>(), 1);
    EXPECT_FALSE(row.contains("experts"));
  }
  EXPECT_EQ(evaluations, 2);
  const Events events = read_events(folder_ / "tags");
  EXPECT_NEAR(events.at("experts/1/dropped", 1), load["dropped"][1].get<double>(), 1e-6);
  EXPECT_EQ(events.at("eval/experts/0/dropped", 2), 0);
  EXPECT_GE(events.at("eval/experts/0/largest", 4), 1);
}

/// Returns the lines of a file in alphabetical order.
std::vector<std::string> sorted_lines(const std::string& path) {
  std::vector<std::string> lines = split(slurp(path), '\n');
  std::ranges::sort(lines);
  return lines;
}

// Before its first update, the trained model has the weights of sampling. The second step has other weights.
TEST_F(ExpertTraining, ReplaysTheExpertsOfSampling) {
  last("base", "bf16=false", 0);
  const std::string base = folder_ / "base", answers = folder_ / "answers.jsonl",
                    experts = folder_ / "experts.jsonl";
  const std::string asked = "generate " + base + " --file " + Task::get().held_out() +
                            " --max-new 12 --max-length 100 --device cpu --deterministic strict --out ";
  expect_success(trainer(asked + answers + " --save-routing " + experts));
  EXPECT_EQ(sorted_lines(experts).size(), 14U) << "a line per answer, the first line, and the end";
  // Files of the user stay.
  const std::string mine = folder_ / "mine.jsonl", refused = folder_ / "refused.jsonl";
  spill(mine, "{\"text\": \"mine\"}\n");
  for (const std::string& path : {mine, experts, folder_ / "base"}) {
    const std::string before = fs::is_directory(path) ? "" : slurp(path);
    for (const std::string more : {"", " --overwrite"}) {
      if (path == experts && !more.empty()) continue;
      const Outcome run = trainer(asked + refused + " --save-routing " + path + more);
      EXPECT_EQ(run.code, 64) << run.both();
      EXPECT_EQ(errors_in(run), 1) << run.both();
      EXPECT_FALSE(fs::exists(refused)) << run.both();
    }
    if (!before.empty()) {
      EXPECT_EQ(slurp(path), before);
    }
  }
  const std::string others = folder_ / "others.jsonl";
  expect_success(trainer(asked + (folder_ / "out.jsonl") + " --save-routing " + others, 2));
  EXPECT_EQ(sorted_lines(others), sorted_lines(experts));
  // A run that continues keeps the file of the run before, and needs it.
  expect_success(trainer(asked + (folder_ / "out.jsonl") + " --save-routing " + others));
  EXPECT_EQ(sorted_lines(others), sorted_lines(experts));
  fs::remove(others);
  const Outcome missing = trainer(asked + (folder_ / "out.jsonl") + " --save-routing " + others);
  EXPECT_EQ(missing.code, 64) << missing.both();
  EXPECT_NE(missing.err.find("the experts of the earlier answers are missing"), std::string::npos)
      << missing.err;
  const auto losses = [&](const std::string& out, const std::string& more) {
    expect_success(trainer(train(
        out, "bf16=false model_name_or_path=" + base +
                 " train_from_scratch=false max_steps=2 global_batch_size=4 dataset=" + answers + more)));
    const auto steps = steps_of(folder_ / out);
    return std::pair(steps.at(1)["loss"].get<double>(), steps.at(2)["loss"].get<double>());
  };
  const auto plain = losses("plain", ""), replayed = losses("replayed", " moe_routing_file=" + experts);
  EXPECT_EQ(replayed.first, plain.first);
  EXPECT_NE(replayed.second, plain.second) << "the experts stay";
}

TEST_F(ExpertTraining, RoutingOfOtherRowsOrModelsIsRefusedByRowAndFile) {
  const std::string path = folder_ / "experts.jsonl";
  const std::string head =
      R"({"format":"octet routing","version":1,"blocks":[0,1],"experts":4,"experts_per_token":2})";
  struct Row {
    std::string text, said;
  };
  const Row rows[] = {
      {head + "\n", "of the data has no experts in the file of experts"},
      {R"({"format":"octet routing","version":1,"blocks":[0],"experts":4,"experts_per_token":2})",
       "another model"},
      {R"({"format":"octet routing","version":1,"blocks":[0,1],"experts":8,"experts_per_token":2})",
       "another model"},
      {head + "\n{\"ids\":[1,2,3],\"experts\":\"AAAA\"}\n", "another number of tokens"},
  };
  for (const Row& row : rows) {
    spill(path, row.text);
    const Outcome run = trainer(train("refused", "moe_routing_file=" + path), 2);
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.err.find(row.said), std::string::npos) << run.err;
    EXPECT_NE(run.err.find(path), std::string::npos) << run.err;
  }
  const Outcome dense =
      trainer("generate " + Task::get().model() + " --file " + Task::get().held_out() + " --out " +
              (folder_ / "out.jsonl") + " --save-routing " + path + " --device cpu");
  EXPECT_EQ(dense.code, 64) << dense.both();
}

// The log has the loss with the z-loss. Evaluations have the loss without it.
TEST_F(ExpertTraining, TheLossOfTheLogHasTheZLoss) {
  const auto first = [&](const std::string& out, const std::string& more) {
    expect_success(trainer(train(out, "max_steps=1 " + more)));
    return steps_of(folder_ / out).at(1)["loss"].get<double>();
  };
  const double without = first("without", ""), with = first("with", "router_z_loss_coef=0.5");
  // Logits of new routers are nearly 0: the logarithm is that of 4 experts, in each of two blocks.
  EXPECT_NEAR(with - without, 0.5 * 2 * std::log(4) * std::log(4), 0.2);
  const double alias = first("alias", "moe_z_loss_coeff=0.5");
  EXPECT_EQ(alias, with);
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
    const weights::SafetensorsFile adapter(folder_ / (out + "/adapter_model.safetensors"));
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
  const weights::SafetensorsFile adapter(folder_ / "lora/adapter_model.safetensors");
  EXPECT_NE(adapter.find("base_model.model.model.layers.1.mlp.gate.weight"), nullptr);
  for (const std::string more : {"lora_dropout=0.1", "use_dora=true"}) {
    const Outcome run =
        trainer(train("refused", options + " lora_target=q_proj,mlp.experts.down_proj " + more));
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.err.find("for adapters of parameters"), std::string::npos) << run.err;
  }
}

/// Returns the first logprob of an answer of a model.
double logprob_of(const TemporaryFolder& folder, const std::string& model) {
  spill(folder / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2, 9, 8, 30]}\n");
  const std::string answers = folder / "out.jsonl";
  expect_success(trainer("generate " + model + " --file " + (folder / "in.jsonl") + " --out " + answers +
                         " --overwrite --max-new 1 --max-length 64 --logprobs 1 --ignore-eos --dtype fp32 "
                         "--device cpu"));
  return parse_json(split(slurp(answers), '\n').at(0), answers)["logprobs"][0].get<double>();
}

// DoRA, dropout, and one adapter for gate and up: the same bits at every stage; training continues from the
// folder, and the merged model answers like base and adapter.
TEST_F(WholeExpertTraining, AdaptersOfEveryKindTrainContinueAndMerge) {
  last("base", "", 0);
  const std::string base = folder_ / "base";
  const std::string common = "model_name_or_path=" + base +
                             " train_from_scratch=false finetuning_type=lora lora_rank=4 max_steps=4 "
                             "learning_rate=0.01 export_dtype=fp32 ";
  const std::pair<std::string, std::string> kinds[] = {
      {"dora", "use_dora=true"},
      {"dropout", "lora_dropout=0.2"},
      {"stacked", "lora_target=q_proj,mlp.experts.gate_up_proj,mlp.experts.down_proj"},
      {"nf4", "use_dora=true quantization_bit=4"},
  };
  for (const auto& [name, keys] : kinds) {
    SCOPED_TRACE(name);
    expect_success(trainer(train(name, common + keys + " zero_stage=0"), 2));
    expect_success(trainer(train(name + "_3", common + keys + " zero_stage=3 recompute=full"), 2));
    expect_identical(folder_ / (name + "/checkpoint-4"), folder_ / (name + "_3/checkpoint-4"));
    expect_success(
        trainer(train(name + "_split", common + keys + " zero_stage=1 expert_parallel_size=2"), 2));
    expect_identical(folder_ / (name + "/checkpoint-4"), folder_ / (name + "_split/checkpoint-4"));
    EXPECT_EQ(slurp(folder_ / (name + "_split/adapter_model.safetensors")),
              slurp(folder_ / (name + "/adapter_model.safetensors")));
    const weights::SafetensorsFile adapter(folder_ / (name + "/adapter_model.safetensors"));
    const std::string expert = "base_model.model.model.layers.0.mlp.experts.";
    EXPECT_EQ(adapter.find(expert + "2.up_proj.lora_B.weight") != nullptr, name != "stacked");
    EXPECT_EQ(adapter.find(expert + "2.up_proj.lora_magnitude_vector") != nullptr,
              name == "dora" || name == "nf4");
    EXPECT_NE(logprob_of(folder_, folder_ / name), logprob_of(folder_, base));
    if (name == "nf4") continue;  // merged into other weights than it was trained on
    // The folder computes what the checkpoint computes, and the merged model too.
    const std::string merged = folder_ / (name + "_merged");
    expect_success(trainer("export " + (folder_ / name) + " " + merged + " --merge --dtype fp32"));
    const double trained = logprob_of(folder_, folder_ / (name + "/checkpoint-4"));
    EXPECT_NEAR(logprob_of(folder_, folder_ / name), trained, 1e-6);
    EXPECT_NEAR(logprob_of(folder_, merged), trained, 1e-5);
    expect_success(trainer(train(
        name + "_more", common + " max_steps=1 learning_rate=0 adapter_name_or_path=" + (folder_ / name))));
    EXPECT_EQ(slurp(folder_ / (name + "_more/adapter_model.safetensors")),
              slurp(folder_ / (name + "/adapter_model.safetensors")));
  }
  const weights::SafetensorsFile stacked(folder_ / "stacked/adapter_model.safetensors");
  const std::string mixture = "base_model.model.model.layers.1.mlp.experts.";
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(stacked.at(mixture + "base_layer.lora_A.weight").shape, (Shape{16, 32}));
  EXPECT_EQ(stacked.at(mixture + "base_layer.lora_B.weight").shape, (Shape{32, 16}));
  EXPECT_EQ(stacked.at(mixture + "lora_A.weight").shape, (Shape{16, 16}));
  EXPECT_EQ(stacked.at(mixture + "lora_B.weight").shape, (Shape{32, 16}));
  EXPECT_EQ(read_json(folder_ / "stacked/adapter_config.json")["target_parameters"],
            Json::array({"mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
}

/// Replaces the weights of all linear modules of the blocks by the values that their NF4 codes stand for.
void decode_nf4(Contents& contents, bool twice) {
  const auto cpu = make_cpu_device();
  const auto stream = cpu->make_stream({});
  for (auto& [name, t] : contents.all) {
    if (name.find("_proj.weight") == std::string::npos) continue;
    const std::int64_t count = t.shape[0] * t.shape[1], blocks = ops::nf4_blocks(count);
    std::vector<float> values(static_cast<std::size_t>(count)), scales(static_cast<std::size_t>(blocks));
    ASSERT_EQ(t.dtype, DType::f32) << name;
    std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(ops::nf4_code_bytes(count))),
        scale_codes(scales.size());
    std::vector<float> nested(static_cast<std::size_t>(ops::nf4_scale_blocks(count)));
    float mean = 0;
    ops::nf4_quantize(*stream,
                      {.x = values.data(), .count = count, .codes = codes.data(), .scales = scales.data()});
    ops::nf4_quantize_scales(*stream, {.scales = scales.data(),
                                       .blocks = blocks,
                                       .codes = scale_codes.data(),
                                       .nested = nested.data(),
                                       .mean = &mean});
    const ops::Nf4Scales of =
        twice ? ops::Nf4Scales{.codes = scale_codes.data(), .nested = nested.data(), .mean = &mean}
              : ops::Nf4Scales{.plain = scales.data()};
    ops::nf4_decode(*stream, {.codes = codes.data(), .scales = of, .count = count, .to = values.data()});
    stream->synchronize();
    t.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
}

// The codes of each tensor of an expert are those of a linear layer, and nothing else changes.
TEST_F(ExpertTraining, AdaptersOnABaseIn4BitsComputeWhatTheDecodedBaseGives) {
  last("base", "", 0);
  const std::string plain = folder_ / "base";
  for (const bool twice : {false, true}) {
    const std::string decoded = folder_ / (twice ? "decoded2" : "decoded");
    fs::copy(plain, decoded);
    Contents contents(decoded + "/model.safetensors");
    decode_nf4(contents, twice);
    contents.write(decoded + "/model.safetensors");
    const std::string keys = " device=cpu bf16=false finetuning_type=lora lora_rank=4 lora_target=all";
    const std::string nf4 = keys + " quantization_bit=4 double_quantization=" + (twice ? "true" : "false");
    const std::vector<float> expected = probed(folder_, decoded, keys);
    EXPECT_EQ(probed(folder_, plain, nf4), expected);
    EXPECT_GT(distance(probed(folder_, plain, keys), expected), 1e-3);
    EXPECT_LT(distance(probed(folder_, plain, nf4 + " zero_stage=3", 2), expected), 1e-6);
  }
}

TEST_F(WholeExpertTraining, AdaptersOnAFrozenBaseInFp8FollowBf16) {
  last("base", "", 0);
  const auto losses = [&](const std::string& name, const std::string& keys) {
    expect_success(
        trainer(train(name, "model_name_or_path=" + (folder_ / "base") +
                                " train_from_scratch=false finetuning_type=lora lora_rank=4 max_steps=4 "
                                "learning_rate=0.01 bf16=true lora_target=gate_proj,up_proj,down_proj " +
                                keys),
                2));
    std::vector<double> all;
    for (const auto& [step, row] : steps_of(folder_ / name)) all.push_back(row["loss"].get<double>());
    return all;
  };
  const std::vector<double> reference = losses("bf16", "");
  for (const std::string recipe : {"delayed", "current", "block"}) {
    for (const std::string more : {"", " use_dora=true"}) {
      const std::string name = recipe + (more.empty() ? "" : "_dora");
      const std::vector<double> found = losses(name, "zero_stage=3 fp8=true fp8_recipe=" + recipe + more);
      ASSERT_EQ(found.size(), reference.size());
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i] / reference[i], 1, 0.01) << name << ", step " << i;
    }
  }
}

TEST_F(WholeExpertTraining, AdaptersOnABaseIn4BitsHaveTheSameBitsAtEveryStage) {
  last("base", "", 0);
  for (const std::string recipe :
       {"bf16=true", "bf16=true fp8=true fp8_recipe=current", "bf16=true fp8=true fp8_recipe=delayed",
        "bf16=true fp8=true fp8_recipe=block", "bf16=true fp8=true recompute=full"}) {
    const std::string options = "model_name_or_path=" + (folder_ / "base") +
                                " train_from_scratch=false finetuning_type=lora lora_rank=4 max_steps=3 "
                                "quantization_bit=4 additional_target=gate " +
                                recipe;
    expect_success(trainer(train("nf4", options + " zero_stage=0"), 2));
    for (const std::string stage : {"2", "3"}) {
      expect_success(trainer(train("other", options + " zero_stage=" + stage), 2));
      expect_identical(folder_ / "nf4/checkpoint-3", folder_ / "other/checkpoint-3");
      fs::remove_all(folder_ / "other");
    }
    fs::remove_all(folder_ / "nf4");
  }
}

// Experts of one block at a time are decoded.
TEST_F(ExpertTraining, AMixtureOf30BillionParametersIn4BitsFitsIn32GiB) {
  const Outcome run = trainer(
      "plan qwen3-30b-a3b device=cuda card=h200 world=1 finetuning_type=lora lora_target=q_proj "
      "quantization_bit=4 bf16=true per_device_train_batch_size=1 cutoff_len=2048 recompute=full --json");
  ASSERT_EQ(run.code, 0) << run.both();
  const Json plan = parse_json(run.out, "plan --json");
  constexpr double kGiB = 1 << 30;
  EXPECT_LT(plan["total_bytes"].get<double>(), 20 * kGiB);
  // 48 blocks of 128 experts of 3 matrices of 2048 x 768; a block decoded is 1.125 GiB in bf16.
  const double experts = 48.0 * 128 * 3 * 2048 * 768;
  EXPECT_LT(plan["memory"]["parameters/fixed"].get<double>(),
            0.52 * experts + 2.0 * 2 * 151936 * 2048 + 0.6 * kGiB);
  EXPECT_NEAR(plan["memory"]["parameters/decoded"].get<double>() / kGiB, 1.125 + 0.035, 0.01);
}

TEST_F(WholeExpertTraining, ArePlannedAndTimed) {
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

const std::string kBias = "model.layers.1.mlp.gate.e_score_correction_bias";

/// The quickstart's task for families with other routers.
class RouterFamilies : public ExpertTraining {
 protected:
  void become_glm4() {
    Json config = parse_json(slurp(model_ + "/config.json"), "config.json");
    for (const char* key : {"num_experts", "output_router_logits", "router_aux_loss_coef"}) config.erase(key);
    config.update(Json{{"model_type", "glm4_moe"},
                       {"architectures", {"Glm4MoeForCausalLM"}},
                       {"n_routed_experts", 8},
                       {"num_experts_per_tok", 2},
                       {"n_group", 4},
                       {"topk_group", 2},
                       {"n_shared_experts", 1},
                       {"first_k_dense_replace", 1},
                       {"partial_rotary_factor", 0.5},
                       {"routed_scaling_factor", 2.5},
                       {"use_qk_norm", true},
                       {"num_nextn_predict_layers", 1}});
    spill(model_ + "/config.json", config.dump());
  }
  /// Trains a first model, and gives its router a bias and a block that predicts further tokens.
  std::string biased() {
    become_glm4();
    const Outcome run = trainer(train("base", "max_steps=1"));
    EXPECT_EQ(run.code, 0) << run.both();
    std::string folder = folder_ / "base";
    Contents contents(folder + "/model.safetensors");
    contents.all.at(kBias) = {DType::f32, {8}, bias()};
    contents.all["model.layers.2.eh_proj.weight"] = {DType::f32, {1}, std::string(4, '\0')};
    contents.write(folder + "/model.safetensors");
    return folder;
  }
  /// Values that bf16 does not hold.
  static std::string bias() {
    std::vector<float> values;
    for (int e = 0; e < 8; ++e) values.push_back(0.1f * static_cast<float>(e - 3) + 1e-6f);
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
};

TEST_F(RouterFamilies, TheBiasOfAChoiceStaysAsItWasReadAtEveryStage) {
  const std::string start =
      "model_name_or_path=" + biased() + " train_from_scratch=false max_steps=4 bf16=true ";
  std::string reference;
  for (const std::string stage : {"0", "1", "2", "3"}) {
    const std::string out = folder_ / ("stage" + stage);
    expect_success(trainer(train("stage" + stage, start + "zero_stage=" + stage), 2));
    if (reference.empty()) reference = out + "/checkpoint-4";
    expect_identical(reference, out + "/checkpoint-4");
    const Contents found(out + "/model.safetensors");
    EXPECT_EQ(found.all.at(kBias).dtype, DType::f32);
    EXPECT_EQ(found.all.at(kBias).bytes, bias());
    EXPECT_EQ(found.all.at("model.layers.1.mlp.gate.weight").dtype, DType::bf16);
    EXPECT_FALSE(found.all.contains("model.layers.2.eh_proj.weight"));
  }
  expect_success(trainer("export " + reference + " " + (folder_ / "exported") + " --export_dtype bf16"));
  EXPECT_EQ(Contents(folder_ / "exported/model.safetensors").all.at(kBias).bytes, bias());
  spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
  std::vector<std::string> answers;
  for (const std::string& model : {folder_ / "exported", reference}) {
    expect_success(trainer(
        "generate " + model + " --file " + (folder_ / "in.jsonl") + " --out " + (folder_ / "out.jsonl") +
        " --overwrite --max-new 8 --max-length 64 --ignore-eos --logprobs 1 --device cpu"));
    answers.push_back(slurp(folder_ / "out.jsonl"));
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST_F(RouterFamilies, ABiasThatIsMissingOrNotFiniteIsRefused) {
  const std::string base = biased();
  spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
  for (const bool missing : {true, false}) {
    Contents contents(base + "/model.safetensors");
    if (missing) {
      contents.all.erase(kBias);
    } else {
      contents.all.at(kBias).bytes.replace(4, 4, std::string("\x00\x00\x80\x7f", 4));
    }
    contents.write(base + "/model.safetensors");
    const Outcome run = trainer("generate " + base + " --file " + (folder_ / "in.jsonl") + " --out " +
                                (folder_ / "out.jsonl") + " --max-new 1 --max-length 64 --device cpu");
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.err.find(missing ? "tensor '" + kBias + "' is missing" : "a weight is not finite"),
              std::string::npos)
        << run.err;
    contents.all[kBias] = {DType::f32, {8}, bias()};
    contents.write(base + "/model.safetensors");
  }
}

/// Runs before a release only.
class WholeRouterFamilies : public RouterFamilies {};

TEST_F(WholeRouterFamilies, OlmoeLearnsWithTheSameBitsAtEveryStageAndAnswers) {
  Json config = parse_json(slurp(model_ + "/config.json"), "config.json");
  config["model_type"] = "olmoe";
  config["architectures"] = {"OlmoeForCausalLM"};
  config["intermediate_size"] = 16;
  config.erase("moe_intermediate_size");
  spill(model_ + "/config.json", config.dump());
  const std::string reference = last("stage0", "zero_stage=0", 2);
  for (const std::string stage : {"1", "2", "3"})
    expect_identical(reference, last("stage" + stage, "zero_stage=" + stage, 2));
  const auto steps = steps_of(folder_ / "stage0");
  EXPECT_LT(steps.at(12)["loss"].get<double>(), 0.9 * steps.at(1)["loss"].get<double>());
  spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
  expect_success(trainer("generate " + (folder_ / "stage0") + " --file " + (folder_ / "in.jsonl") +
                         " --out " + (folder_ / "out.jsonl") + " --max-new 4 --max-length 64 --device cpu"));
  const Outcome split = trainer("generate " + (folder_ / "stage0") + " --tensor-parallel-size 2 --file " +
                                    (folder_ / "in.jsonl") + " --out " + (folder_ / "split.jsonl") +
                                    " --max-new 4 --max-length 64 --device cpu",
                                2);
  EXPECT_EQ(split.code, 64) << split.both();
  EXPECT_NE(split.err.find("a norm reads all its heads"), std::string::npos) << split.err;
}

/// The quickstart's task for gpt-oss.
class GptOss : public ExpertTraining {
 protected:
  GptOss() {
    Json config = parse_json(slurp(model_ + "/config.json"), "config.json");
    for (const char* key : {"num_experts", "moe_intermediate_size", "norm_topk_prob", "mlp_bias"})
      config.erase(key);
    config.update(Json{{"model_type", "gpt_oss"},
                       {"architectures", {"GptOssForCausalLM"}},
                       {"intermediate_size", 32},
                       {"num_local_experts", 4},
                       {"attention_bias", true},
                       {"sliding_window", 16},
                       {"swiglu_limit", 1.0},
                       {"rope_scaling",
                        {{"rope_type", "yarn"},
                         {"factor", 4.0},
                         {"truncate", false},
                         {"original_max_position_embeddings", 64}}}});
    spill(model_ + "/config.json", config.dump());
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
};

// The files have the tensors and shapes of transformers, and are read again.
TEST_F(GptOss, LearnsWithTheSameBitsAtEveryStageAndIsStoredStacked) {
  const std::string reference = last("stage0", "zero_stage=0", 2);
  expect_identical(reference, last("stage3", "zero_stage=3", 2));
  const auto steps = steps_of(folder_ / "stage0");
  EXPECT_LT(steps.at(12)["loss"].get<double>(), 0.95 * steps.at(1)["loss"].get<double>());
  const Contents saved(folder_ / "stage0/model.safetensors");
  const std::string mlp = "model.layers.1.mlp.";
  const std::map<std::string, std::vector<std::int64_t>> shapes{{mlp + "experts.gate_up_proj", {4, 32, 64}},
                                                                {mlp + "experts.gate_up_proj_bias", {4, 64}},
                                                                {mlp + "experts.down_proj", {4, 32, 32}},
                                                                {mlp + "experts.down_proj_bias", {4, 32}},
                                                                {mlp + "router.weight", {4, 32}},
                                                                {mlp + "router.bias", {4}},
                                                                {"model.layers.1.self_attn.sinks", {2}}};
  for (const auto& [name, shape] : shapes) {
    ASSERT_TRUE(saved.all.contains(name)) << name;
    EXPECT_EQ(saved.all.at(name).shape, shape) << name;
  }
  EXPECT_FALSE(saved.all.contains(mlp + "experts.0.down_proj.weight"));
  EXPECT_EQ(answer(folder_ / "stage0"), answer(reference)) << "the model and its checkpoint";
  EXPECT_EQ(answer(folder_ / "stage0"), answer(folder_ / "stage0", "--tensor-parallel-size 2", 2));
  const std::string start = "max_steps=2 train_from_scratch=false model_name_or_path=";
  expect_success(trainer(train("again", start + (folder_ / "stage0"))));
  EXPECT_LT(steps_of(folder_ / "again").at(1)["loss"].get<double>(), steps.at(10)["loss"].get<double>());
}

// Merged adapters on attention, experts and routers give the answers of the adapters.
TEST_F(GptOss, AdaptersOnExpertsAreMerged) {
  expect_success(trainer(train("base", "max_steps=1")));
  expect_success(trainer(train("lora",
                               "max_steps=3 train_from_scratch=false finetuning_type=lora "
                               "lora_rank=2 learning_rate=0.05 additional_target=router "
                               "lora_target=q_proj,mlp.experts.gate_up_proj,mlp.experts.down_proj "
                               "model_name_or_path=" +
                                   (folder_ / "base"))));
  expect_success(trainer("export " + (folder_ / "lora/checkpoint-3") + " " + (folder_ / "merged") +
                         " --merge --export_dtype fp32"));
  EXPECT_NE(answer(folder_ / "base", "--logprobs 1"), answer(folder_ / "merged", "--logprobs 1"));
  EXPECT_EQ(answer(folder_ / "lora/checkpoint-3"), answer(folder_ / "merged"));
}

TEST_F(GptOss, MissingSinksAndBiasesAreRefused) {
  const std::string folder = folder_ / "wrong";
  fs::copy(OCTET_SOURCE_DIR "/tests/golden/models/gpt-oss", folder);
  spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
  const Contents whole(folder + "/model.safetensors");
  const std::pair<std::string, std::string> rows[] = {
      {"model.layers.0.self_attn.sinks", "'model.layers.0.self_attn.sinks' is missing"},
      {"model.layers.1.mlp.router.bias", "'model.layers.1.mlp.router.bias' is missing"},
      {"model.layers.1.mlp.experts.down_proj_bias", "'model.layers.1.mlp.experts."},
      {"model.layers.1.mlp.experts.down_proj", "the matrices of experts are incomplete"}};
  for (const auto& [missing, says] : rows) {
    Contents contents = whole;
    contents.all.erase(missing);
    contents.write(folder + "/model.safetensors");
    const Outcome run = trainer("generate " + folder + " --file " + (folder_ / "in.jsonl") + " --out " +
                                (folder_ / "out.jsonl") + " --max-new 1 --max-length 64 --device cpu");
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.err.find(says), std::string::npos) << run.err;
  }
}

/// Runs before a release only.
class WholeGptOss : public GptOss {};

TEST_F(WholeGptOss, StrictHasTheSameBitsOnOneTwoAndFourRanks) {
  const std::string options = "deterministic=strict gradient_accumulation_steps=";
  const std::string small = " global_batch_size=null per_device_train_batch_size=2 ";
  const std::string reference = last("one", options + "4" + small, 1);
  for (const std::string stage : {"1", "2", "3"}) {
    expect_identical(reference, last("two" + stage, options + "2" + small + "zero_stage=" + stage, 2));
    expect_identical(reference, last("four" + stage, options + "1" + small + "zero_stage=" + stage, 4));
  }
}

}  // namespace
}  // namespace octet::test::experts_test
