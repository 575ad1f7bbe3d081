// Reward models (stage: rm): the share of right pairs rises, ranks, stages and restarts keep the bits, and
// saved models score rows.
#include <cmath>
#include <filesystem>

#include "cli/pairs.h"
#include "cli/task.h"

namespace octet::test {
namespace {

class Rewards : public ::testing::Test {
 protected:
  std::string train(const std::string& name, const std::string& more) const {
    return "train " + Task::get().config() + " output_dir=" + out(name) +
           " train_from_scratch=false model_name_or_path=" + Pairs::get().other_model() +
           " dataset=" + Pairs::get().file() +
           " stage=rm global_batch_size=8 per_device_train_batch_size=4 " +
           "max_steps=4 save_steps=2 export_dtype=fp32 " + more;
  }
  std::string out(const std::string& name) const { return folder_ / name; }
  Json row(const std::string& name, std::int64_t step) const { return steps_of(out(name)).at(step); }
  /// Scores a file, and returns the lines.
  std::vector<Json> scored(const std::string& model, const std::string& file, const std::string& more,
                           int ranks = 1) const {
    const std::string path = folder_ / "scores.jsonl";
    expect_success(trainer(
        "generate " + model + " --reward --file " + file + " --overwrite --out " + path + more, ranks));
    std::vector<Json> rows;
    for (const auto& line : split(slurp(path), '\n'))
      if (!line.empty()) rows.push_back(parse_json(line, path));
    return rows;
  }
  void expect_refused(const std::string& command, const std::string& part) const {
    const Outcome outcome = trainer(command);
    EXPECT_EQ(outcome.code, 64) << outcome.both();
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.both();
  }

  TemporaryFolder folder_{"rewards"};
};

const std::string kLora = "finetuning_type=lora lora_rank=4 learning_rate=1e-2 ";

TEST_F(Rewards, LearnToTellChosenFromRejectedAnswers) {
  for (const std::string& how : {kLora, std::string("learning_rate=2e-3 ")}) {
    SCOPED_TRACE(how);
    const std::string name = how == kLora ? "lora" : "full";
    expect_success(trainer(train(name, how + "lr_scheduler_type=constant max_steps=12")));
    EXPECT_GT(row(name, 12)["rewards/accuracies"].get<double>(), 0.9);
    EXPECT_GT(row(name, 12)["rewards/margins"].get<double>(), row(name, 1)["rewards/margins"].get<double>());
    EXPECT_LT(row(name, 12)["loss"].get<double>(), row(name, 1)["loss"].get<double>());
    EXPECT_FALSE(row(name, 1).contains("logps/chosen"));
  }
}

TEST_F(Rewards, HaveTheSameBitsAtEveryStageAndWithTwoRanks) {
  for (const std::string& how : {kLora, std::string("learning_rate=1e-3 ")}) {
    const std::string name = how == kLora ? "lora" : "full";
    expect_success(trainer(train(name, how + "deterministic=strict")));
    const std::string other = name + "2", stage = how == kLora ? "0" : "3";
    expect_success(trainer(train(other, how + "deterministic=strict zero_stage=" + stage), 2));
    expect_identical(out(name) + "/checkpoint-4", out(other) + "/checkpoint-4");
  }
}

TEST_F(Rewards, ContinueWithTheSameBitsAfterAKill) {
  for (const std::string& how : {kLora, std::string()}) {
    const std::string name = how.empty() ? "full" : "lora";
    expect_success(trainer(train(name, how)));
    expect_success(trainer(train(name + "2", how)));
    std::filesystem::remove_all(out(name + "2") + "/checkpoint-4");
    expect_success(trainer(train(name + "2", how)));
    expect_identical(out(name) + "/checkpoint-4", out(name + "2") + "/checkpoint-4");
  }
}

TEST_F(Rewards, OfAPackedSequenceAreThoseOfItsPairs) {
  const std::string how = "disable_shuffling=true max_samples=8 max_steps=1 save_strategy=no ";
  expect_success(trainer(train("apart", how + "per_device_train_batch_size=8")));
  expect_success(trainer(train("packed", how + "packing=true cutoff_len=4096 global_batch_size=1 "
                                               "per_device_train_batch_size=1")));
  for (const char* figure : {"loss", "grad_norm", "rewards/chosen", "rewards/rejected"}) {
    const double apart = row("apart", 1)[figure].get<double>();
    EXPECT_NEAR(row("packed", 1)[figure].get<double>(), apart, 1e-5 * std::abs(apart)) << figure;
  }
}

TEST_F(Rewards, OfASavedModelAreThoseOfItsEvaluation) {
  for (const std::string& how : {kLora, std::string("learning_rate=2e-3 ")}) {
    SCOPED_TRACE(how);
    const std::string name = how == kLora ? "lora" : "full";
    expect_success(
        trainer(train(name, how + "eval_strategy=steps eval_steps=4 eval_dataset=" + Pairs::get().file())));
    double wanted = 0;
    for (const auto& line : split(slurp(out(name) + "/trainer_log.jsonl"), '\n')) {
      if (line.find("eval_rewards/margins") == std::string::npos) continue;
      wanted = parse_json(line, "log")["eval_rewards/margins"].get<double>();
    }
    for (const std::string& model : {out(name), out(name) + "/checkpoint-4"}) {
      for (const int ranks : {1, 2}) {
        const std::vector<Json> rows = scored(model, Pairs::get().file(), "", ranks);
        ASSERT_EQ(rows.size(), 40u);
        double margins = 0;
        for (const Json& pair : rows)
          margins += pair["chosen"].get<double>() - pair["rejected"].get<double>();
        EXPECT_NEAR(margins / 40, wanted, 1e-4 * std::abs(wanted) + 1e-5) << model;
      }
    }
  }
  const Json config = parse_json(slurp(out("full") + "/config.json"), "config.json");
  EXPECT_EQ(config["architectures"], Json::array({"LlamaForSequenceClassification"}));
  EXPECT_EQ(config["id2label"].size(), 1u);
  const Json adapter = parse_json(slurp(out("lora") + "/adapter_config.json"), "adapter_config.json");
  EXPECT_EQ(adapter["task_type"], "SEQ_CLS");
  EXPECT_EQ(adapter["modules_to_save"], Json::array({"score"}));
  // Merged into its base, the adapter gives the same scores.
  expect_success(trainer("export " + out("lora") + " " + out("merged") + " --merge --dtype fp32"));
  const std::vector<Json> own = scored(out("lora"), Pairs::get().file(), "");
  const std::vector<Json> merged = scored(out("merged"), Pairs::get().file(), "");
  for (std::size_t i = 0; i < own.size(); ++i)
    EXPECT_NEAR(own[i]["chosen"].get<double>(), merged[i]["chosen"].get<double>(), 1e-4);
}

TEST_F(Rewards, AreRefusedWhereTextIsWritten) {
  expect_success(trainer(train("saved", "max_steps=1")));
  expect_refused("generate " + out("saved") + " hello", "a reward model gives scores and writes no text");
  expect_refused(Task::get().train(out("sft"),
                                   "max_steps=1 train_from_scratch=false model_name_or_path=" + out("saved")),
                 "a reward model gives scores and writes no text");
  expect_refused("generate " + Pairs::get().other_model() + " --reward --file " + Pairs::get().file(),
                 "--reward needs a reward model");
  const std::string rewards = "generate " + out("saved") + " --reward";
  expect_refused(rewards, "--reward needs questions in a file");
  for (const char* option : {"--score", "--max-new 4", "--temperature 0.5", "--logprobs 2", "--n 2"})
    expect_refused(rewards + " --file " + Pairs::get().file() + " " + option,
                   "--reward gives no answers, so " + split(option, ' ').front() + " has no effect");
  spill(Pairs::get().path("one.jsonl"), R"({"prompt": "a", "chosen": "b"})"
                                        "\n");
  expect_refused(train("refused", "dataset=" + Pairs::get().path("one.jsonl")), "are not pairs of answers");
  spill(Pairs::get().path("question.jsonl"), R"({"prompt": "a"})"
                                             "\n");
  expect_refused("generate " + out("saved") + " --reward --file " + Pairs::get().path("question.jsonl"),
                 "the row has no answer to score");
  // A file that cannot be written is refused before rows are scored.
  const std::string into = rewards + " --file " + Pairs::get().path("question.jsonl") + " --out ";
  spill(folder_ / "kept.jsonl", "kept");
  expect_refused(into + (folder_ / "kept.jsonl"), "the file of rewards exists already");
  expect_refused(into + (folder_ / "kept.jsonl") + " --overwrite", "the row has no answer to score");
  EXPECT_EQ(slurp(folder_ / "kept.jsonl"), "kept");
  expect_refused(into + out("saved") + " --overwrite", "--out names a folder");
  expect_refused(into + (folder_ / "kept.jsonl/scores.jsonl"), "kept.jsonl");
  // Training continues from a saved reward model, with its head.
  expect_success(trainer(train("again", "max_steps=1 save_strategy=no model_name_or_path=" + out("saved"))));
}

}  // namespace
}  // namespace octet::test
