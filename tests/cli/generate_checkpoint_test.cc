// `trainer generate CHECKPOINT` gives the answers of the checkpoint's export.
#include "cli/adapter_task.h"
#include "cli/generate_task.h"
#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::test::generate_checkpoint_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAsked = " --device cpu --max-new 12 --temperature 1.2 --seed 5 --logprobs 0 --file ";

class GenerateCheckpoint : public testing::Test {
 protected:
  GenerateCheckpoint() : folder_("generate_checkpoint") {}

  /// Returns the answers of `model` with the log-probability of every token. Stores the output in `said`.
  std::string answers(const std::string& model, int np, const std::string& more = "",
                      std::string* said = nullptr) const {
    const std::string out = folder_ / "answers.jsonl";
    const Outcome run = trainer(
        "generate " + model + kAsked + Task::get().held_out() + " --overwrite --out " + out + " " + more, np);
    EXPECT_EQ(run.code, 0) << run.both();
    if (said != nullptr) *said = run.err;
    return run.code == 0 ? slurp(out) : "";
  }

  /// Expects the checkpoint of step 3 to answer like its export, and unlike the checkpoint of step 6. Strict
  /// answers do not depend on the number of ranks.
  void expect_answers_of_export(const std::string& run, const std::string& kind) const {
    const std::string early = run + "/checkpoint-3", exported = folder_ / ("exported_" + kind);
    expect_success(trainer("export " + early + " " + exported));
    for (const std::string how : {"--deterministic strict", "--dtype bf16 --deterministic strict"}) {
      const std::string wanted = answers(exported, 0, how);
      for (const int np : {0, 2}) {
        std::string said;
        EXPECT_TRUE(answers(early, np, how, &said) == wanted) << kind << ", " << np << " ranks, " << how;
        EXPECT_NE(said.find(early + ", saved after step 3"), std::string::npos) << said;
      }
      EXPECT_TRUE(answers(run + "/checkpoint-6", 0, how) != wanted) << kind;
    }
  }

  TemporaryFolder folder_;
};

/// Runs before a release only.
class WholeGenerateCheckpoint : public GenerateCheckpoint {};

TEST_F(WholeGenerateCheckpoint, OfAllWeightsAnswersAsItsExport) {
  const std::string steps = "max_steps=6 save_steps=3 ";
  expect_success(trainer(Task::get().train(folder_ / "one", steps)));
  expect_answers_of_export(folder_ / "one", "fp32");
  // With an adapter on top.
  expect_success(trainer(lora(folder_ / "adapter", "learning_rate=2.0e-2 save_strategy=no")));
  const std::string with = "--adapter " + (folder_ / "adapter"), checkpoint = folder_ / "one/checkpoint-3";
  EXPECT_TRUE(answers(checkpoint, 0, with) == answers(folder_ / "exported_fp32", 0, with));
  EXPECT_NE(answers(checkpoint, 0, with), answers(checkpoint, 0));
  // Another number of ranks, with shards, and formats that the export rounds.
  expect_success(trainer(
      Task::get().train(folder_ / "three", steps + "bf16=true param_dtype=bf16 grad_dtype=bf16 zero_stage=3"),
      2));
  expect_answers_of_export(folder_ / "three", "bf16");
  expect_success(
      trainer(Task::get().train(folder_ / "masters",
                                steps + "bf16=true param_dtype=fp32 export_dtype=fp16 zero_stage=1"),
              2));
  expect_answers_of_export(folder_ / "masters", "fp16");
}

TEST_F(GenerateCheckpoint, OfAdaptersAnswersAsItsExport) {
  expect_success(trainer(lora(folder_ / "lora", "learning_rate=2.0e-2")));
  expect_answers_of_export(folder_ / "lora", "lora");
  expect_success(on_ranks(2, lora(folder_ / "four_bits",
                                  "learning_rate=2.0e-2 quantization_bit=4 bf16=true zero_stage=3 "
                                  "use_dora=true additional_target=embed_tokens")));
  expect_answers_of_export(folder_ / "four_bits", "qlora");
}

TEST_F(WholeGenerateCheckpoint, OfAPartAnswersAsItsExport) {
  expect_success(trainer(Task::get().train(
      folder_ / "part", "model_name_or_path=" + adapter_base() +
                            " train_from_scratch=false finetuning_type=freeze freeze_trainable_layers=1 "
                            "freeze_trainable_modules=mlp max_steps=6 save_steps=3 bf16=true")));
  expect_answers_of_export(folder_ / "part", "part");
}

// A run on top of other adapters uses both.
TEST_F(WholeGenerateCheckpoint, OfAnAdapterOnTopOfAnotherHasBoth) {
  expect_success(trainer(lora(folder_ / "first", "learning_rate=2.0e-2 save_strategy=no")));
  const std::string on_top = "learning_rate=2.0e-2 create_new_adapter=true adapter_name_or_path=";
  expect_success(trainer(lora(folder_ / "second", on_top + (folder_ / "first"))));
  expect_success(trainer("export " + (folder_ / "second/checkpoint-6") + " " + (folder_ / "whole") +
                         " --merge --dtype fp32"));
  EXPECT_TRUE(answers(folder_ / "second/checkpoint-6", 0) == answers(folder_ / "whole", 0));
}

// Tensor-parallel layers read columns and rows of the checkpoint's tensors.
TEST_F(WholeGenerateCheckpoint, AnswersWithSplitLayersAndScoresTexts) {
  expect_success(trainer(Task::get().train(folder_ / "run", "max_steps=6 save_steps=3 bf16=true")));
  const std::string checkpoint = folder_ / "run/checkpoint-3";
  expect_success(trainer("export " + checkpoint + " " + (folder_ / "exported")));
  const std::string split = "--pipeline_parallel_size 2";
  EXPECT_TRUE(answers(checkpoint, 2, split) == answers(folder_ / "exported", 2, split));
  const std::string tensor = "--tensor_parallel_size 2";
  EXPECT_TRUE(answers(checkpoint, 2, tensor) == answers(folder_ / "exported", 2, tensor));
  const auto scores = [&](const std::string& model) {
    const std::string out = folder_ / "scores.jsonl";
    expect_success(trainer("generate " + model + " --device cpu --score --overwrite --file " +
                           Task::get().held_out() + " --out " + out));
    return slurp(out);
  };
  const std::string wanted = scores(folder_ / "exported");
  EXPECT_GT(wanted.size(), 1000u);
  EXPECT_EQ(scores(checkpoint), wanted);
}

TEST_F(GenerateCheckpoint, IsALinkOrTheNewestOfARunsFolder) {
  expect_success(trainer(Task::get().train(folder_ / "run", "max_steps=6 save_steps=3")));
  const std::string late = answers(folder_ / "run/checkpoint-6", 0);
  const std::string early = answers(folder_ / "run/checkpoint-3", 0);
  EXPECT_NE(late, early);
  fs::create_directory_symlink("checkpoint-3", folder_ / "run/best");
  std::string said;
  EXPECT_TRUE(answers(folder_ / "run/best", 0, "", &said) == early);
  EXPECT_NE(said.find("saved after step 3"), std::string::npos) << said;
  // An unfinished run has no final model yet.
  fs::create_directory(folder_ / "unfinished");
  for (const char* name : {"checkpoint-3", "checkpoint-6"})
    fs::copy(folder_ / (std::string("run/") + name), folder_ / (std::string("unfinished/") + name),
             fs::copy_options::recursive);
  EXPECT_TRUE(answers(folder_ / "unfinished", 0, "", &said) == late);
  EXPECT_NE(said.find("unfinished/checkpoint-6, saved after step 6"), std::string::npos) << said;
  fs::remove(folder_ / "unfinished/checkpoint-6/manifest.json");
  EXPECT_TRUE(answers(folder_ / "unfinished", 0, "", &said) == early);
}

// Answers of another checkpoint under the same name are not resumed.
TEST_F(GenerateCheckpoint, IsPartOfWhatAnswersDependOn) {
  expect_success(trainer(Task::get().train(folder_ / "run", "max_steps=6 save_steps=3")));
  fs::create_directory_symlink("checkpoint-3", folder_ / "run/best");
  const std::string command = "generate " + (folder_ / "run/best") + kAsked + Task::get().held_out() +
                              " --out " + (folder_ / "kept.jsonl");
  expect_success(trainer(command));
  const Outcome again = trainer(command);
  EXPECT_EQ(again.code, 0) << again.both();
  EXPECT_NE(again.err.find("are answered already"), std::string::npos) << again.err;
  fs::remove(folder_ / "run/best");
  fs::create_directory_symlink("checkpoint-6", folder_ / "run/best");
  const Outcome other = trainer(command);
  EXPECT_EQ(other.code, 64) << other.both();
}

/// Returns the lines of the single error of a run.
std::string error_of(const Outcome& run) {
  EXPECT_EQ(errors_in(run), 1) << run.both();
  const std::size_t at = run.err.find("error: ");
  std::string text = at == std::string::npos ? run.err : run.err.substr(at);
  return text.substr(0, text.find("\n\n"));
}

TEST_F(GenerateCheckpoint, ThatDoesNotHoldIsRefusedAsByARunThatGoesOn) {
  expect_success(trainer(Task::get().train(folder_ / "run", "max_steps=6 save_steps=3")));
  const std::string path = folder_ / "run/checkpoint-3";
  const std::string data = slurp(path + "/checkpoint.h5"), manifest = slurp(path + "/manifest.json");
  const auto expect_same_error = [&](const std::string& checkpoint, const std::string& says) {
    const Outcome resumed = trainer(
        Task::get().train(folder_ / "run", "max_steps=6 save_steps=3 resume_from_checkpoint=" + checkpoint));
    EXPECT_NE(resumed.code, 0);
    for (const int np : {0, 2}) {
      const Outcome asked = trainer("generate " + checkpoint + " --device cpu Sort", np);
      EXPECT_EQ(asked.code, resumed.code) << asked.both();
      EXPECT_NE(asked.err.find(says), std::string::npos) << asked.both();
      if (np == 0) {
        EXPECT_EQ(error_of(asked), error_of(resumed));
      }
    }
  };
  std::string damaged = data;
  const checkpoint::Checkpoint opened(path);
  damaged[static_cast<std::size_t>(opened.at("model.layers.1.mlp.up_proj.weight").offset) + 9] ^= 4;
  spill(path + "/checkpoint.h5", damaged);
  expect_same_error(path, "the data of a checkpoint are damaged");
  spill(path + "/checkpoint.h5", data.substr(0, data.size() / 2));
  expect_same_error(path, "checkpoint.h5");
  spill(path + "/checkpoint.h5", data);
  spill(path + "/manifest.json", manifest.substr(0, manifest.size() / 2));
  expect_same_error(path, "manifest.json");
  fs::remove(path + "/manifest.json");
  expect_same_error(path, "manifest.json");
  fs::remove(path + "/checkpoint.h5");
  expect_same_error(path, "manifest.json");
  spill(path + "/checkpoint.h5", data);
  spill(path + "/manifest.json", manifest);
  fs::rename(path, folder_ / "run/checkpoint-4");
  expect_same_error(folder_ / "run/checkpoint-4", "name of another");
}

TEST_F(WholeGenerateCheckpoint, NeedsTheModelThatItsRunBeganWith) {
  const std::string base = folder_ / "base";
  fs::copy(adapter_base(), base, fs::copy_options::recursive);
  expect_success(trainer(lora(folder_ / "run", "model_name_or_path=" + base)));
  const std::string checkpoint = folder_ / "run/checkpoint-6";
  const auto refused = [&](const std::string& says) {
    const Outcome run = trainer("generate " + checkpoint + " --device cpu Sort", 2);
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.err.find(says), std::string::npos) << run.both();
  };
  // Another base of the same shape.
  std::string weights = slurp(base + "/model.safetensors");
  const std::string kept = weights;
  weights.back() = static_cast<char>(weights.back() ^ 1);
  spill(base + "/model.safetensors", weights);
  refused("base model");
  spill(base + "/model.safetensors", kept);
  Json config = parse_json(slurp(base + "/config.json"), "config");
  const Json before = config;
  config["rms_norm_eps"] = 1e-2;
  spill(base + "/config.json", config.dump());
  refused("the checkpoint is of another model");
  fs::remove_all(base);
  refused("the model that the run started from does not exist");
  refused("trainer export " + checkpoint + " OUT --model FOLDER");
  // A random base under adapters is in no folder.
  expect_success(trainer(
      Task::get().train(folder_ / "random", "finetuning_type=lora lora_rank=2 max_steps=2 save_steps=2")));
  const Outcome random = trainer("generate " + (folder_ / "random/checkpoint-2") + " --device cpu Sort");
  EXPECT_EQ(random.code, 64) << random.both();
  EXPECT_NE(random.err.find("its run started from random weights"), std::string::npos) << random.err;
}

// Template, system message and end tokens come from the run, without options on the command line.
TEST_F(GenerateCheckpoint, AsksInTheWordsOfItsRun) {
  const auto ids = [&](const std::string& model, const std::string& more = "") {
    const std::string out = folder_ / "ids.jsonl";
    expect_success(trainer("generate " + model + " --device cpu --score --overwrite --file " +
                           Task::get().held_out() + " --out " + out + " " + more));
    Json all = Json::array();
    for (const Json& row : rows_of(out)) all.push_back(row["ids"]);
    return all;
  };
  expect_success(
      trainer(Task::get().train(folder_ / "run", "max_steps=2 save_steps=2 default_system=Quickly")));
  const Json plain = ids(folder_ / "run/checkpoint-2", "--template chatml --default-system Slowly");
  const Json told = ids(folder_ / "run/checkpoint-2");
  EXPECT_NE(told, plain);
  EXPECT_EQ(told, ids(folder_ / "run/checkpoint-2", "--default_system Quickly"));
  EXPECT_EQ(told, ids(folder_ / "run/checkpoint-2", "--system Quickly"));
  // The run's own folder contains the Jinja template.
  EXPECT_EQ(told, ids(folder_ / "run"));
}

}  // namespace
}  // namespace octet::test::generate_checkpoint_test
