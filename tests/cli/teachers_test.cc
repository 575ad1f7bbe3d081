// Distillation (stage: kd): the model approaches its teacher, and ranks, stages, packing and restarts keep
// the numbers.
#include <cmath>
#include <filesystem>

#include "cli/pairs.h"
#include "cli/task.h"

namespace octet::test {
namespace {

/// Runs with the scores of a teacher, in a folder of the test.
class Teachers : public ::testing::Test {
 protected:
  /// Returns the scores of a teacher that was trained for some steps, with eight tokens at each place.
  static const std::string& scores() {
    static const std::string file = score("scores.h5", "8");
    return file;
  }
  static std::string score(const std::string& name, const std::string& best) {
    std::string path = Pairs::get().path(name);
    expect_success(trainer("generate " + Pairs::get().other_model() + " --device cpu --score --logprobs " +
                           best + " --template chatml --file " + Task::get().data() + " --out " + path));
    return path;
  }
  std::string train(const std::string& name, const std::string& more) const {
    return Task::get().train(
        out(name), "stage=kd teacher_logprobs=" + scores() + " kd_topk=8 max_steps=4 save_steps=2 " + more);
  }
  std::string out(const std::string& name) const { return folder_ / name; }
  Json row(const std::string& name, std::int64_t step) const { return steps_of(out(name)).at(step); }

  TemporaryFolder folder_{"teachers"};
};

TEST_F(Teachers, AreApproachedFromTheLoggedLoss) {
  expect_success(trainer(train("near", "kd_ratio=0.75 max_steps=12 learning_rate=5e-3")));
  const Json first = row("near", 1), last = row("near", 12);
  const double kd = first["kd_loss"].get<double>(), ce = first["ce_loss"].get<double>();
  EXPECT_NEAR(first["loss"].get<double>(), 0.75 * kd + 0.25 * ce, 1e-6 * ce);
  EXPECT_LT(last["kd_loss"].get<double>(), 0.8 * kd);
  EXPECT_GT(last["teacher_agreement"].get<double>(), first["teacher_agreement"].get<double>());
}

TEST_F(Teachers, HaveNoDivergenceFromThemselves) {
  const std::string same = "train_from_scratch=false max_steps=1 save_strategy=no model_name_or_path=" +
                           Pairs::get().other_model();
  for (const std::string& rest : {std::string("bucket"), std::string("renormalise")}) {
    expect_success(trainer(train(rest, same + " kd_rest=" + rest)));
    EXPECT_LT(std::abs(row(rest, 1)["kd_loss"].get<double>()), 1e-3) << rest;
    EXPECT_GT(row(rest, 1)["ce_loss"].get<double>(), 0.1) << rest;
    EXPECT_GT(row(rest, 1)["teacher_agreement"].get<double>(), 0.99) << rest;
  }
}

TEST_F(Teachers, HaveTheSameBitsAtEveryStageAndWithTwoRanks) {
  const std::string lora = "finetuning_type=lora deterministic=strict ";
  for (const std::string& how : {lora, std::string("deterministic=strict kd_beta=0.5 ")}) {
    const std::string name = how == lora ? "lora" : "full";
    expect_success(trainer(train(name, how)));
    for (const std::string stage : {"0", "3"}) {
      const std::string other = name + stage;
      expect_success(trainer(train(other, how + "zero_stage=" + stage), 2));
      expect_identical(out(name) + "/checkpoint-4", out(other) + "/checkpoint-4");
      const double figure = row(name, 4)["kd_loss"].get<double>();
      EXPECT_NEAR(row(other, 4)["kd_loss"].get<double>(), figure, 1e-9 * figure);
    }
  }
}

TEST_F(Teachers, ContinueWithTheSameBitsAfterAKill) {
  expect_success(trainer(train("whole", "")));
  expect_success(trainer(train("again", "")));
  std::filesystem::remove_all(out("again") + "/checkpoint-4");
  expect_success(trainer(train("again", "")));
  expect_identical(out("whole") + "/checkpoint-4", out("again") + "/checkpoint-4");
  expect_every_step(out("again"), 4);
}

TEST_F(Teachers, OfAPackedSequenceAreThoseOfItsRows) {
  const std::string how = "disable_shuffling=true max_samples=8 max_steps=1 save_strategy=no ";
  expect_success(trainer(train("apart", how + "global_batch_size=8 per_device_train_batch_size=8")));
  expect_success(trainer(train("packed", how + "packing=true cutoff_len=4096 global_batch_size=1 "
                                               "per_device_train_batch_size=1")));
  for (const char* figure : {"loss", "grad_norm", "kd_loss", "ce_loss"}) {
    const double apart = row("apart", 1)[figure].get<double>();
    EXPECT_NEAR(row("packed", 1)[figure].get<double>(), apart, 1e-5 * std::abs(apart)) << figure;
  }
}

TEST_F(Teachers, AreEvaluatedAndTrainInBf16AndFp8) {
  for (const std::string& dtype : {std::string("bf16"), std::string("fp8")}) {
    expect_success(
        trainer(train(dtype, "bf16=true " + dtype + "=true val_size=4 eval_strategy=steps eval_steps=2")));
    int evaluations = 0;
    for (const auto& line : split(slurp(out(dtype) + "/trainer_log.jsonl"), '\n')) {
      if (line.empty()) continue;
      const Json row = parse_json(line, "trainer_log.jsonl");
      if (!row.contains("eval_loss")) continue;
      ++evaluations;
      const double kd = row["eval_kd_loss"].get<double>(), ce = row["eval_ce_loss"].get<double>();
      EXPECT_NEAR(row["eval_loss"].get<double>(), 0.5 * (kd + ce), 1e-6 * ce);
      EXPECT_TRUE(row.contains("eval_teacher_agreement"));
    }
    EXPECT_EQ(evaluations, 2);
  }
}

TEST_F(Teachers, OfOtherDataAndOtherVocabulariesAreRefused) {
  const auto refused = [&](const std::string& more, const std::string& part, int code = 64) {
    const Outcome outcome = trainer(train("refused", more), 2);
    EXPECT_EQ(outcome.code, code) << outcome.both();
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.both();
  };
  refused("dataset=" + Task::get().held_out(), "has no row in the file of the teacher");
  refused("eval_dataset=" + Task::get().held_out(), "has no row in the file of the teacher");
  refused("kd_topk=9", "the teacher lists fewer tokens than kd_topk");
  refused("teacher_logprobs=" + Task::get().data(), "HDF5");
  refused("teacher_logprobs=" + (folder_ / "none.h5"), "none.h5");
  const std::string other = folder_ / "other";
  std::filesystem::copy(Task::get().model(), other);
  Json tokenizer = parse_json(slurp(other + "/tokenizer.json"), "tokenizer.json");
  // Words exchange their tokens.
  Json* before = nullptr;
  Json& vocabulary = tokenizer["model"]["vocab"];
  for (auto word = vocabulary.begin(); word != vocabulary.end(); ++word) {
    if (word.key().starts_with("<")) continue;
    if (before != nullptr) std::swap(*before, word.value());
    before = before == nullptr ? &word.value() : nullptr;
  }
  spill(other + "/tokenizer.json", tokenizer.dump());
  refused("model_name_or_path=" + other, "has no row in the file of the teacher");
  Json model = parse_json(slurp(Task::get().model() + "/config.json"), "config.json");
  model["vocab_size"] = model["vocab_size"].get<int>() + 8;
  spill(other + "/config.json", model.dump());
  refused("model_name_or_path=" + other, "another vocabulary");
}

}  // namespace
}  // namespace octet::test
