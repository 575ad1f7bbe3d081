// SFT-Play's files, and those that they include.

#include <filesystem>

#include "config/support.h"
#include "support/temporary_folder.h"

namespace octet::config::test {
namespace {

TEST(SftPlay, ItsNestedKeysBecomeOurs) {
  const Resolved r = load_text(R"(
model: {name: org/model, local_dir: models/m, max_seq_len: 1024, type: causal}
tuning: {mode: full, backend: bnb, lora: {r: 32, alpha: 64}}
train:
  batch_size: 4
  grad_accum: auto
  epochs: 3
  learning_rate: 2e-4
  warmup_ratio: 0.06
  lr_scheduler_type: cosine
  optim: paged_adamw_8bit
  bf16: true
  evaluation_strategy: steps
  save_total_limit: 3
  output_dir: runs/x
data: {format: chat, train_path: train.jsonl, val_path: val.jsonl}
logging: {backend: tensorboard, log_interval: 5}
task_mode: cpt
seed: 7
)",
                               "play.yaml", {"train.batch_size=2"}, quiet());
  const Config& c = r.config;
  EXPECT_EQ(c.model_name_or_path, "models/m");
  EXPECT_EQ(c.cutoff_len, 1024);
  EXPECT_EQ(c.per_device_train_batch_size, 2);
  EXPECT_FALSE(c.gradient_accumulation_steps);
  EXPECT_EQ(c.global_batch_size, 32) << "grad_accum: auto";
  EXPECT_EQ(c.learning_rate, 2e-4);
  EXPECT_EQ(c.eval_strategy, "steps");
  EXPECT_EQ(c.dataset, Strings{"train.jsonl"});
  EXPECT_EQ(c.stage, "pt");
  EXPECT_EQ(c.logging_steps, 5);
  EXPECT_TRUE(c.tensorboard());
  EXPECT_TRUE(notes(r, "tuning.backend"));
  EXPECT_EQ(c.finetuning_type, "full");
  EXPECT_TRUE(notes(r, "'tuning.lora.r'")) << "by the word that stands in the file";
  EXPECT_EQ(c.optim_dtype, "int8");
  EXPECT_TRUE(notes(r, "pages nothing"));
}

TEST(SftPlay, ItsAdaptersBecomeOurs) {
  const Config c =
      load_text(
          "tuning: {mode: lora, lora: {r: 32, alpha: 64, dropout: 0, target_modules: [q_proj, v_proj]}}",
          "play.yaml", {}, quiet(false))
          .config;
  EXPECT_EQ(c.finetuning_type, "lora");
  EXPECT_EQ(c.lora_rank, 32);
  EXPECT_EQ(c.lora_alpha, 64);
  EXPECT_EQ(c.lora_target, (Strings{"q_proj", "v_proj"}));
  const Config q = load_text("tuning: {mode: qlora}", "play.yaml", {}, quiet(false)).config;
  EXPECT_EQ(q.finetuning_type, "lora");
  EXPECT_EQ(q.quantization_bit, 4);
}

TEST(SftPlay, WhatIsNotBuiltIsRefusedByItsOwnName) {
  EXPECT_SAYS(refusal("tuning: {mode: oft}"), "'tuning.mode: oft'");
  EXPECT_SAYS(refusal("tuning: {mode: ptuning}"), "'ptuning'");
  EXPECT_SAYS(refusal("tuning: {lora: {r: 8}}"), "'tuning.lora.r' asks for adapters");
  EXPECT_SAYS(refusal("train: {lerning_rate: 1}"), "did you mean 'train.learning_rate'?");
  EXPECT_SAYS(refusal("train: {learning_rate: x}"), "train.learning_rate");
  EXPECT_SAYS(refusal("train: {learning_rate: 1}\nlearning_rate: 2"), "given twice");
  EXPECT_SAYS(refusal("train: {load_best_model_at_end: true, metric_for_best_model: rougeL}\nval_size: 0.1\n"
                      "eval_strategy: steps"),
              "evaluation computes the loss");
  EXPECT_SAYS(refusal("include: base.yaml"), "the included configuration does not exist");
  EXPECT_SAYS(refusal("", {"include=base.yaml"}), "write it into the configuration file");
  EXPECT_SAYS(refusal("train: 3"), "unknown key 'train'");
  EXPECT_SAYS(refusal("datasets: [{pth: a}]"), "did you mean 'path'?");
  EXPECT_SAYS(refusal("datasets: {path: a}"), "a list of {path: FILE, weight: NUMBER}");
  EXPECT_SAYS(refusal("data: {split: {train_ratio: 7}}"), "a share above 0");
}

TEST(SftPlay, AutoChoosesABatchOfThirtyTwo) {
  const auto batch = [](const std::string& train, const Strings& overrides = {}) {
    const Config c = load_text("train: {" + train + "}", "play.yaml", overrides, quiet(false)).config;
    return (c.auto_find_batch_size ? "auto " : std::to_string(c.per_device_train_batch_size) + " ") +
           (c.global_batch_size ? std::to_string(*c.global_batch_size) : "-") + " " +
           (c.gradient_accumulation_steps ? std::to_string(*c.gradient_accumulation_steps) : "-");
  };
  EXPECT_EQ(batch("batch_size: auto, grad_accum: auto"), "auto 32 -");
  EXPECT_EQ(batch("batch_size: auto"), "auto 32 -");
  EXPECT_EQ(batch("batch_size: 4, grad_accum: auto"), "4 32 -");
  EXPECT_EQ(batch("batch_size: 6, grad_accum: auto"), "6 30 -")
      << "the nearest number of whole micro-batches";
  EXPECT_EQ(batch("batch_size: 64, grad_accum: auto"), "64 64 -");
  EXPECT_EQ(batch("grad_accum: auto"), "8 32 -");
  EXPECT_EQ(batch("batch_size: 4, grad_accum: 2"), "4 - 2");
  // The command line counts, in either dialect.
  EXPECT_EQ(batch("batch_size: auto, grad_accum: auto", {"train.batch_size=2"}), "2 32 -");
  EXPECT_EQ(batch("batch_size: auto, grad_accum: auto", {"per_device_train_batch_size=2"}), "2 32 -");
  EXPECT_EQ(batch("batch_size: auto, grad_accum: auto", {"global_batch_size=48"}), "auto 48 -");
  EXPECT_EQ(batch("batch_size: 4, grad_accum: auto", {"train.grad_accum=3"}), "4 - 3");
  EXPECT_EQ(batch("batch_size: 4, grad_accum: 2", {"train.grad_accum=auto"}), "4 32 -");
  EXPECT_TRUE(
      notes(load_text("train: {grad_accum: auto}", "play.yaml", {}, quiet(false)), "global_batch_size sets"));
}

TEST(SftPlay, SeveralSetsAreMixedByTheirWeights) {
  const Config c = load_text(R"(
task_mode: cpt_mixed
block_size: 1024
datasets:
  - {name: domain, path: a.jsonl, type: cpt, weight: 0.7}
  - {name: chat, path: b.jsonl, type: chat}
)",
                             "play.yaml", {}, quiet(false))
                       .config;
  EXPECT_EQ(c.dataset, (Strings{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(c.interleave_probs, (Strings{"0.7", "1"}));
  EXPECT_EQ(c.mix_strategy, "interleave_under");
  EXPECT_EQ(c.stage, "sft") << "texts are trained whole there, too";
  EXPECT_TRUE(c.packing);
  EXPECT_EQ(c.cutoff_len, 1024);
  const Config plain = load_text("datasets: [a.jsonl, {name: b}]", "play.yaml", {}, quiet(false)).config;
  EXPECT_EQ(plain.dataset, (Strings{"a.jsonl", "b"}));
  EXPECT_EQ(plain.mix_strategy, "concat");
}

TEST(SftPlay, WhatIsNotTrainedOfADividedFileIsHeldOut) {
  const auto held = [](const std::string& data) {
    return load_text("data: {" + data + "}", "play.yaml", {}, quiet(false));
  };
  EXPECT_DOUBLE_EQ(held("split: {train_ratio: 0.7, val: 0.1, test: 0.2}").config.val_size, 0.3);
  EXPECT_EQ(held("split: {train_ratio: 1}").config.val_size, 0);
  const Resolved divided = held("val_path: v.jsonl, split: {train_ratio: 0.7}");
  EXPECT_EQ(divided.config.val_size, 0);
  EXPECT_TRUE(notes(divided, "'data.split.train_ratio' is not read"));
}

class Included : public testing::Test {
 protected:
  octet::test::TemporaryFolder scratch_{"include"};
  const std::string& folder_ = scratch_.path();
  Included() { std::filesystem::create_directories(folder_ + "/below"); }
  void file(const std::string& name, const std::string& text) {
    write_file_atomically(folder_ + "/" + name, text);
  }
  Resolved loaded(const std::string& name, Strings overrides = {}) {
    overrides.insert(overrides.begin(), folder_ + "/" + name);
    return load(overrides, quiet(false));
  }
  std::string message(const std::string& name, const Strings& overrides = {}) {
    try {
      loaded(name, overrides);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }
};

TEST_F(Included, FilesGiveWhatTheIncludingOneDoesNotSay) {
  file("base.yaml", "train: {epochs: 3, learning_rate: 2e-4}\nseed: 7\ndata: {train_path: a}\n");
  file("more.yaml", "seed: 8\ntrain: {epochs: 5}\n");
  file("below/run.yaml", "include: ../base.yaml\ntrain: {epochs: 1}\n");
  file("both.yaml", "include: [base.yaml, more.yaml]\n");
  file("again.yaml", "include: below/run.yaml\ntrain: {learning_rate: null}\n");
  const Resolved r = loaded("below/run.yaml");
  EXPECT_EQ(r.config.num_train_epochs, 1);
  EXPECT_EQ(r.config.learning_rate, 2e-4);
  EXPECT_SAYS(r.origins.at("learning_rate").where, "base.yaml:1");
  EXPECT_SAYS(r.origins.at("num_train_epochs").where, "run.yaml:2");
  const Config both = loaded("both.yaml").config;
  EXPECT_EQ(both.seed, 8) << "the last file counts";
  EXPECT_EQ(both.num_train_epochs, 5);
  EXPECT_EQ(both.learning_rate, 2e-4);
  const Config again = loaded("again.yaml").config;
  EXPECT_EQ(again.num_train_epochs, 1);
  EXPECT_EQ(again.learning_rate, Config().learning_rate) << "null takes a value back";
}

TEST_F(Included, MistakesAreToldOfTheFileThatHasThem) {
  file("bad.yaml", "seed: 1\ntrain:\n  lerning_rate: 1\n");
  file("run.yaml", "include: bad.yaml\n");
  file("circle.yaml", "seed: 1\ninclude: other.yaml\n");
  file("other.yaml", "include: [circle.yaml]\n");
  file("gone.yaml", "\ninclude: nowhere.yaml\n");
  file("map.yaml", "include: {a: b}\n");
  EXPECT_SAYS(message("run.yaml"), "bad.yaml:3");
  EXPECT_SAYS(message("circle.yaml"), "in a circle");
  EXPECT_SAYS(message("gone.yaml"), "gone.yaml:2");
  EXPECT_SAYS(message("map.yaml"), "a file, or a list of files");
}

}  // namespace
}  // namespace octet::config::test
