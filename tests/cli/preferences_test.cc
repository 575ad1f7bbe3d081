// Preferences (stage: dpo): the margin rises, and ranks, stages, packing and restarts keep the numbers.
#include <cmath>
#include <filesystem>

#include "cli/pairs.h"
#include "cli/task.h"

namespace octet::test {
namespace {

/// Runs on pairs, in a folder of the test.
class Preferences : public ::testing::Test {
 protected:
  std::string train(const std::string& name, const std::string& more) const {
    return "train " + Task::get().config() + " output_dir=" + out(name) +
           " train_from_scratch=false model_name_or_path=" + Pairs::get().other_model() +
           " dataset=" + Pairs::get().file() +
           " stage=dpo global_batch_size=8 per_device_train_batch_size=4 max_steps=6 save_steps=3 " + more;
  }
  std::string out(const std::string& name) const { return folder_ / name; }
  Json row(const std::string& name, std::int64_t step) const { return steps_of(out(name)).at(step); }
  void expect_first_step_is_even(const std::string& name) const {
    const Json first = row(name, 1);
    EXPECT_NEAR(first["loss"].get<double>(), std::log(2.0), 1e-15);
    for (const char* figure : {"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"})
      EXPECT_EQ(first[figure].get<double>(), 0.0) << figure;
    EXPECT_LT(first["logps/chosen"].get<double>(), 0.0);
    EXPECT_LT(first["logps/rejected"].get<double>(), 0.0);
  }

  TemporaryFolder folder_{"preferences"};
};

TEST_F(Preferences, RaiseTheMarginFromZero) {
  const std::string lora = "finetuning_type=lora lora_rank=4 learning_rate=1e-2 ";
  for (const std::string& how :
       {lora, lora + "precompute_ref_log_probs=true", std::string("learning_rate=2e-3")}) {
    SCOPED_TRACE(how);
    const std::string name = "margin" + std::to_string(how.size());
    expect_success(trainer(train(name, "lr_scheduler_type=constant max_steps=20 " + how)));
    expect_first_step_is_even(name);
    EXPECT_GT(row(name, 20)["rewards/margins"].get<double>(), 0.1);
    EXPECT_LT(row(name, 20)["loss"].get<double>(), 0.65);
    EXPECT_EQ(row(name, 20)["rewards/accuracies"].get<double>(), 1.0);
  }
}

TEST_F(Preferences, HaveTheSameBitsAtEveryStageAndWithTwoRanks) {
  const std::string lora = "finetuning_type=lora deterministic=strict pref_ftx=0.1 ";
  for (const std::string& how : {lora, std::string("deterministic=strict ")}) {
    const std::string name = how == lora ? "lora" : "full";
    expect_success(trainer(train(name, how)));
    const std::vector<std::string> stages =
        how == lora ? std::vector<std::string>{"0", "3"} : std::vector<std::string>{"1", "2", "3"};
    for (const std::string& stage : stages) {
      const std::string other = name + stage;
      expect_success(trainer(train(other, how + "zero_stage=" + stage), 2));
      expect_identical(out(name) + "/checkpoint-6", out(other) + "/checkpoint-6");
    }
  }
}

TEST_F(Preferences, ContinueWithTheSameBitsAfterAKill) {
  const std::string lora = "finetuning_type=lora ";
  for (const std::string& how : {lora, std::string()}) {
    const std::string name = how == lora ? "lora" : "full";
    expect_success(trainer(train(name, how)));
    expect_success(trainer(train(name + "2", how)));
    std::filesystem::remove_all(out(name + "2") + "/checkpoint-6");
    expect_success(trainer(train(name + "2", how)));
    expect_identical(out(name) + "/checkpoint-6", out(name + "2") + "/checkpoint-6");
    expect_every_step(out(name + "2"), 6);
  }
}

TEST_F(Preferences, OfAPackedSequenceAreThoseOfItsPairs) {
  const std::string how = "disable_shuffling=true max_samples=8 max_steps=1 save_strategy=no ";
  expect_success(trainer(train("apart", how + "per_device_train_batch_size=8")));
  expect_success(trainer(train("packed", how + "packing=true cutoff_len=4096 global_batch_size=1 "
                                               "per_device_train_batch_size=1")));
  for (const char* figure : {"loss", "grad_norm", "logps/chosen", "logps/rejected"}) {
    const double apart = row("apart", 1)[figure].get<double>();
    EXPECT_NEAR(row("packed", 1)[figure].get<double>(), apart, 1e-5 * std::abs(apart)) << figure;
  }
}

TEST_F(Preferences, ReadTheStoredReferenceUnlessItChanged) {
  const std::string reference = Pairs::get().path("reference");
  std::filesystem::remove_all(reference);
  std::filesystem::copy(Pairs::get().other_model(), reference);
  const std::string how = "max_steps=1 max_samples=8 save_strategy=no ref_model=" + reference;
  const auto margin_with = [&](const std::string& name, const std::string& stored) {
    std::filesystem::create_directories(out(name));
    if (!stored.empty()) spill(out(name) + "/reference.h5", stored);
    expect_success(trainer(train(name, how)));
    return row(name, 1)["rewards/margins"].get<double>();
  };
  const auto flip_last_byte = [](std::string& bytes, int bits) {
    bytes.back() = static_cast<char>(bytes.back() ^ bits);
  };
  EXPECT_EQ(margin_with("computed", ""), 0.0);
  const std::string stored = slurp(out("computed") + "/reference.h5");
  std::string damaged = stored;
  flip_last_byte(damaged, 0x40);
  EXPECT_EQ(margin_with("damaged", damaged), 0.0);
  EXPECT_EQ(margin_with("cut", stored.substr(0, stored.size() / 2)), 0.0);
  // The file of weights keeps its size.
  std::string weights = slurp(reference + "/model.safetensors");
  flip_last_byte(weights, 0x80);
  spill(reference + "/model.safetensors", weights);
  EXPECT_NE(margin_with("changed", stored), 0.0);
}

TEST_F(Preferences, AreEvaluated) {
  expect_success(trainer(train("evaluated", "val_size=4 eval_strategy=steps eval_steps=3")));
  const std::string log = slurp(out("evaluated") + "/trainer_log.jsonl");
  int evaluations = 0;
  for (const auto& line : split(log, '\n')) {
    if (line.empty()) continue;
    const Json row = parse_json(line, "trainer_log.jsonl");
    if (!row.contains("eval_loss")) continue;
    ++evaluations;
    EXPECT_TRUE(row.contains("eval_rewards/margins") && row.contains("eval_logps/chosen"));
  }
  EXPECT_EQ(evaluations, 2);
}

TEST_F(Preferences, RefuseOtherDataAndOtherVocabularies) {
  const auto refused = [&](const std::string& more, const std::string& part) {
    const Outcome outcome = trainer(train("refused", more));
    EXPECT_EQ(outcome.code, 64) << outcome.both();
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.both();
  };
  refused("dataset=" + Task::get().data(), "are not pairs of answers");
  refused("stage=sft", "format of a data set is not recognised");
  spill(Pairs::get().path("one.jsonl"), R"({"prompt": "a", "chosen": "b"})"
                                        "\n");
  refused("dataset=" + Pairs::get().path("one.jsonl"), "are not pairs of answers");
  spill(Pairs::get().path("equal.jsonl"), R"({"prompt": "a", "chosen": "b", "rejected": "b"})"
                                          "\n");
  refused("dataset=" + Pairs::get().path("equal.jsonl"), "the chosen and the rejected answer are equal");
  const std::string other = Pairs::get().path("other");
  std::filesystem::remove_all(other);
  std::filesystem::copy(Pairs::get().other_model(), other);
  std::string tokenizer = slurp(other + "/tokenizer.json");
  Json json = parse_json(tokenizer, "tokenizer.json");
  Json& vocabulary = json["model"]["vocab"];
  const auto first = vocabulary.begin();
  auto second = first;
  ++second;
  std::swap(first.value(), second.value());
  spill(other + "/tokenizer.json", json.dump());
  refused("ref_model=" + other, "another vocabulary");
  refused("ref_model=/nowhere", "/nowhere");
}

}  // namespace
}  // namespace octet::test
