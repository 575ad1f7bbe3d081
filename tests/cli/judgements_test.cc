// Judged answers (stage: kto): the margin rises, and ranks, stages, packing and restarts keep the numbers.
#include <cmath>
#include <filesystem>

#include "cli/judged.h"
#include "cli/pairs.h"
#include "cli/task.h"

namespace octet::test {
namespace {

/// Runs on judged answers, in a folder of the test.
class Judgements : public ::testing::Test {
 protected:
  std::string train(const std::string& name, const std::string& more) const {
    return "train " + Task::get().config() + " output_dir=" + out(name) +
           " train_from_scratch=false model_name_or_path=" + Pairs::get().other_model() +
           " dataset=" + Judged::get().file() +
           " stage=kto global_batch_size=16 per_device_train_batch_size=4 max_steps=4 save_steps=2 " + more;
  }
  std::string out(const std::string& name) const { return folder_ / name; }
  Json row(const std::string& name, std::int64_t step) const { return steps_of(out(name)).at(step); }

  TemporaryFolder folder_{"judgements"};
};

TEST_F(Judgements, RaiseTheMarginFromZero) {
  const std::string lora = "finetuning_type=lora lora_rank=4 learning_rate=1e-2 ";
  for (const std::string& how :
       {lora, lora + "precompute_ref_log_probs=true", std::string("learning_rate=2e-3")}) {
    SCOPED_TRACE(how);
    const std::string name = "margin" + std::to_string(how.size());
    expect_success(trainer(train(name, "lr_scheduler_type=constant max_steps=12 " + how)));
    const Json first = row(name, 1);
    EXPECT_NEAR(first["loss"].get<double>(), 0.5, 1e-15);
    for (const char* figure : {"rewards/chosen", "rewards/rejected", "rewards/margins", "kl"})
      EXPECT_EQ(first[figure].get<double>(), 0.0) << figure;
    EXPECT_LT(first["logps/chosen"].get<double>(), 0.0);
    EXPECT_LT(first["logps/rejected"].get<double>(), 0.0);
    EXPECT_GT(row(name, 12)["rewards/margins"].get<double>(), 0.05);
    EXPECT_LT(row(name, 12)["loss"].get<double>(), 0.5);
  }
}

TEST_F(Judgements, HaveTheSameBitsAtEveryStageAndWithTwoRanks) {
  const std::string lora = "finetuning_type=lora deterministic=strict pref_ftx=0.1 learning_rate=1e-2 ";
  for (const std::string& how : {lora, std::string("deterministic=strict learning_rate=1e-3 ")}) {
    const std::string name = how == lora ? "lora" : "full";
    expect_success(trainer(train(name, how)));
    for (const std::string& stage :
         how == lora ? std::vector<std::string>{"0"} : std::vector<std::string>{"3"}) {
      const std::string other = name + stage;
      expect_success(trainer(train(other, how + "zero_stage=" + stage), 2));
      expect_identical(out(name) + "/checkpoint-4", out(other) + "/checkpoint-4");
      EXPECT_EQ(row(name, 4)["kl"], row(other, 4)["kl"]);
      for (const char* figure : {"rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"}) {
        const double alone = row(name, 4)[figure].get<double>();
        EXPECT_NEAR(row(other, 4)[figure].get<double>(), alone, 1e-9 * std::abs(alone)) << figure;
      }
    }
  }
}

// The model was trained for more steps than the reference, so it prefers all answers.
TEST_F(Judgements, ReadAReferencePointAboveZero) {
  const std::string reference = Judged::get().path("reference");
  expect_success(trainer(Task::get().train(reference, "max_steps=1 save_strategy=no learning_rate=1e-2")));
  const std::string how =
      "finetuning_type=lora max_steps=1 save_strategy=no deterministic=strict ref_model=" + reference;
  expect_success(trainer(train("point", how + " max_steps=2")));
  const double first = row("point", 1)["kl"].get<double>(), second = row("point", 2)["kl"].get<double>();
  EXPECT_GT(first, 0.0);
  EXPECT_NE(first, second);
  expect_success(trainer(train("ranks", how + " max_steps=2 logging_steps=2"), 2));
  EXPECT_NEAR(row("ranks", 2)["kl"].get<double>(), (first + second) / 2, 1e-9 * first);
  expect_success(trainer(train("weights", how + " kto_chosen_weight=2 kto_rejected_weight=0.5")));
  EXPECT_NE(row("point", 1)["loss"], row("weights", 1)["loss"]);
  EXPECT_EQ(row("point", 1)["kl"], row("weights", 1)["kl"]);
  expect_success(trainer(train("pairs", how + " preprocessing_batch_size=2")));
  EXPECT_NE(row("point", 1)["kl"], row("pairs", 1)["kl"]) << "other questions get the answers";
}

TEST_F(Judgements, ContinueWithTheSameBitsAfterAKill) {
  for (const std::string& how : {std::string("finetuning_type=lora "), std::string()}) {
    const std::string name = how.empty() ? "full" : "lora";
    expect_success(trainer(train(name, how)));
    expect_success(trainer(train(name + "2", how)));
    std::filesystem::remove_all(out(name + "2") + "/checkpoint-4");
    expect_success(trainer(train(name + "2", how)));
    expect_identical(out(name) + "/checkpoint-4", out(name + "2") + "/checkpoint-4");
    expect_every_step(out(name + "2"), 4);
  }
}

TEST_F(Judgements, OfAPackedSequenceAreThoseOfItsAnswers) {
  const std::string how = "disable_shuffling=true max_samples=8 max_steps=1 save_strategy=no ";
  expect_success(trainer(train("apart", how + "global_batch_size=8 per_device_train_batch_size=8")));
  expect_success(trainer(train("packed", how + "packing=true cutoff_len=4096 global_batch_size=1 "
                                               "per_device_train_batch_size=1")));
  for (const char* figure : {"loss", "grad_norm", "logps/chosen", "logps/rejected"}) {
    const double apart = row("apart", 1)[figure].get<double>();
    EXPECT_NEAR(row("packed", 1)[figure].get<double>(), apart, 1e-5 * std::abs(apart)) << figure;
  }
}

TEST_F(Judgements, AreEvaluated) {
  expect_success(trainer(train("evaluated", "val_size=4 eval_strategy=steps eval_steps=2")));
  int evaluations = 0;
  for (const auto& line : split(slurp(out("evaluated") + "/trainer_log.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json row = parse_json(line, "trainer_log.jsonl");
    if (!row.contains("eval_loss")) continue;
    ++evaluations;
    EXPECT_TRUE(row.contains("eval_kl"));
  }
  EXPECT_EQ(evaluations, 2);
}

TEST_F(Judgements, RefuseOtherDataAndWarnOfOneKind) {
  const auto said = [&](const std::string& data, const std::string& part, int code) {
    const Outcome outcome = trainer(train("said", "max_steps=1 save_strategy=no dataset=" + data));
    EXPECT_EQ(outcome.code, code) << outcome.both();
    EXPECT_NE(outcome.both().find(part), std::string::npos) << outcome.both();
  };
  said(Task::get().data(), "have no judged answers, which stage: kto needs", 64);
  said(Pairs::get().file(), "have no judged answers, which stage: kto needs", 64);
  const auto file = [](const std::string& name, const std::string& row) {
    const std::string path = Judged::get().path(name);
    spill(path, row + "\n" + row + "\n");
    return path;
  };
  said(file("empty.jsonl", R"({"prompt": "a", "completion": " ", "label": true})"),
       "the judged answer is empty", 64);
  said(file("good.jsonl", R"({"prompt": "1 2", "completion": "2 1", "label": true})"),
       "all judged answers are desirable", 0);
}

}  // namespace
}  // namespace octet::test
