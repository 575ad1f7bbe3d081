#include <unistd.h>

#include <filesystem>

#include "config/support.h"
#include "octet/base/strings.h"

namespace octet::config::test {
namespace {

class DeepSpeed : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "/octet_deepspeed_" + std::to_string(::getpid()) + ".json";
  ~DeepSpeed() override { std::filesystem::remove(path_); }
  Resolved with(const std::string& json, const std::string& yaml = "", const Strings& overrides = {}) {
    write_file_atomically(path_, json);
    return read("deepspeed: " + path_ + "\n" + yaml, overrides);
  }
  std::string message(const std::string& json, const std::string& yaml = "") {
    write_file_atomically(path_, json);
    return refusal("deepspeed: " + path_ + "\n" + yaml);
  }
};

TEST_F(DeepSpeed, ItsKeysBecomeOurs) {
  const Resolved r = with(R"({ // a comment
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto",
    "gradient_clipping": 0.5, "bf16": {"enabled": true}, "steps_per_print": 10,
    "zero_optimization": {"stage": 1, "overlap_comm": false, "contiguous_gradients": true,
       "allgather_bucket_size": 5e8, "offload_optimizer": {"device": "cpu", "pin_memory": true}},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": "auto", "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 7, "warmup_max_lr": 1e-4}}})");
  const Config& c = r.config;
  EXPECT_EQ(c.global_batch_size, 64);
  EXPECT_EQ(c.per_device_train_batch_size, 2);
  EXPECT_FALSE(c.gradient_accumulation_steps);
  EXPECT_EQ(c.max_grad_norm, 0.5);
  EXPECT_EQ(c.zero_stage, 1);
  EXPECT_TRUE(c.bf16 && !c.overlap_comm && c.optim_state_cpu_offload);
  EXPECT_EQ(c.learning_rate, 1e-4);
  EXPECT_EQ(c.adam_beta2, 0.95);
  EXPECT_EQ(c.lr_scheduler_type, "deepspeed_warmup_decay");
  EXPECT_EQ(c.warmup_steps, 7);
  EXPECT_EQ(r.origins.at("zero_stage").source, Source::deepspeed);
  EXPECT_SAYS(r.origins.at("zero_stage").where, "zero_optimization.stage");
  EXPECT_TRUE(notes(r, "allgather_bucket_size"));
}

TEST_F(DeepSpeed, AutoNeverConflictsAndAnExplicitMismatchNamesBothPlaces) {
  EXPECT_EQ(with(R"({"gradient_accumulation_steps": "auto"})", "gradient_accumulation_steps: 3")
                .config.gradient_accumulation_steps,
            3);
  EXPECT_EQ(with(R"({"gradient_accumulation_steps": 3})", "gradient_accumulation_steps: 3")
                .config.gradient_accumulation_steps,
            3);
  const std::string text = message(R"({"gradient_accumulation_steps": 4})", "gradient_accumulation_steps: 3");
  EXPECT_SAYS(text, "disagree on 'gradient_accumulation_steps'");
  EXPECT_SAYS(text, "test.yaml:5");
  EXPECT_SAYS(text, ".json: gradient_accumulation_steps");
  const Resolved r = with(R"({"gradient_accumulation_steps": 4})", "gradient_accumulation_steps: 3",
                          {"gradient_accumulation_steps=2"});
  EXPECT_EQ(r.config.gradient_accumulation_steps, 2);
}

TEST_F(DeepSpeed, AnFp8SectionIsAnErrorUnlessTheYamlAsksForFp8) {
  EXPECT_SAYS(message(R"({"fp8": {"enabled": true}})"), "no 'fp8' section");
  EXPECT_TRUE(notes(with(R"({"fp8": {"enabled": true}})", "fp8: true"), "no 'fp8' section"));
}

TEST_F(DeepSpeed, KeysThatDeepSpeedWouldRefuseOrIgnoreAreErrors) {
  EXPECT_SAYS(message(R"({"zero_optimization": {"stagee": 1}})"), "did you mean 'zero_optimization.stage'?");
  EXPECT_SAYS(message(R"({"gradient_cliping": 1})"), "gradient_clipping");
  EXPECT_SAYS(message(R"({"communication_data_type": "fp8"})"), "reduce_dtype");
  EXPECT_TRUE(notes(with(R"({"communication_data_type": "fp32"})"), "twice as large"));
  EXPECT_EQ(with(R"({"communication_data_type": "bf16"})").config.reduce_dtype, "bf16");
  EXPECT_SAYS(message(R"({"fp16": {"enabled": true}})"), "bf16");
  EXPECT_NO_THROW(
      with(R"({"fp16": {"enabled": false}, "bf16": {"enabled": false}, "zero_optimization": {"stage": 0}})",
           "bf16: true"));
  EXPECT_SAYS(message(R"({"zero_optimization": {"zero_quantized_gradients": true}})"), "not supported");
  EXPECT_SAYS(message(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})"), "none or cpu");
  EXPECT_SAYS(message(R"({"zero_optimization": 1})"), "must be an object");
  EXPECT_SAYS(message(R"({"zero_optimization": {"stage": 1.5}})"), "zero_optimization.stage");
  EXPECT_SAYS(message(R"({"optimizer": {"type": "Lamb"}})"), "AdamW");
  EXPECT_SAYS(message(R"({"scheduler": {"type": "OneCycle"}})"), "WarmupLR");
  EXPECT_SAYS(message(R"({"optimizer": {"params": {"betas": [0.9]}}})"), "two numbers");
}

// deepspeed/runtime/engine.py: type Adam is AdamW unless adam_w_mode says otherwise, type AdamW always is.
TEST_F(DeepSpeed, AdamIsAdamWUnlessItsDecayGoesIntoTheGradient) {
  const auto optimizer = [](const std::string& type, const std::string& params) {
    return R"({"optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}}";
  };
  EXPECT_EQ(with(optimizer("Adam", R"("weight_decay": 0.1)")).config.weight_decay, 0.1);
  EXPECT_TRUE(with(optimizer("Adam", R"("weight_decay": 0.1, "adam_w_mode": true)")).notes.empty());
  const std::string l2 = optimizer("Adam", R"("weight_decay": 0.1, "adam_w_mode": false)");
  EXPECT_SAYS(message(l2), "'optimizer.params.adam_w_mode: false' with a weight decay");
  EXPECT_SAYS(message(l2), "set adam_w_mode: true");
  const std::string open = optimizer("Adam", R"("weight_decay": "auto", "adam_w_mode": false)");
  EXPECT_SAYS(message(open, "weight_decay: 0.2"), "weight_decay 0.2");
  EXPECT_NO_THROW(with(open)) << "without decay both are the same";
  EXPECT_NO_THROW(with(l2, "", {"weight_decay=0"}));
  EXPECT_TRUE(
      notes(with(optimizer("AdamW", R"("weight_decay": 0.1, "adam_w_mode": false)")), "nor in DeepSpeed"));
  EXPECT_SAYS(message(optimizer("Adam", R"("adam_w_mode": 3)")), "true or false");
  EXPECT_TRUE(notes(with(optimizer("Adam", R"("torch_adam": true)")), "torch.optim.AdamW"));
  EXPECT_SAYS(message(optimizer("Adam", R"("amsgrad": true)")), "without AMSGrad");
  EXPECT_SAYS(message(optimizer("Adam", R"("bias_correction": false)")), "always corrected");
  EXPECT_SAYS(message(optimizer("Adam", R"("weight_dekay": 1)")),
              "did you mean 'optimizer.params.weight_decay'?");
  EXPECT_SAYS(message(R"({"optimizer": {"parameters": {}}})"), "did you mean 'optimizer.params'?");
  EXPECT_SAYS(message(R"({"optimizer": {"params": 3}})"), "'optimizer.params' must be an object");
}

TEST_F(DeepSpeed, ItsSchedulesComeWithAllTheirParameters) {
  const auto scheduler = [](const std::string& type, const std::string& params) {
    return R"({"scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}}";
  };
  const auto argument = [](const Config& c, const char* name) {
    return std::get<double>(c.lr_scheduler_kwargs.at(name));
  };
  const std::string rest = R"("warmup_max_lr": 2e-4, "warmup_num_steps": 9)";
  const Config log =
      with(scheduler("WarmupLR", R"("warmup_min_lr": 1e-5, "warmup_type": "log", )" + rest)).config;
  EXPECT_EQ(log.lr_scheduler_type, "deepspeed_warmup");
  EXPECT_EQ(argument(log, "warmup_min_lr"), 1e-5);
  EXPECT_EQ(std::get<std::string>(log.lr_scheduler_kwargs.at("warmup_type")), "log");
  EXPECT_EQ(log.learning_rate, 2e-4);
  EXPECT_EQ(log.warmup_steps, 9);
  const Config decay =
      with(scheduler("WarmupDecayLR", R"("total_num_steps": 77, "warmup_type": "linear", )" + rest)).config;
  EXPECT_EQ(decay.lr_scheduler_type, "deepspeed_warmup_decay");
  EXPECT_EQ(argument(decay, "total_num_steps"), 77);
  EXPECT_EQ(std::get<std::string>(decay.lr_scheduler_kwargs.at("warmup_type")), "linear");
  const Config cosine =
      with(scheduler("WarmupCosineLR", R"("total_num_steps": "auto", "warmup_min_ratio": 0.2,
      "cos_min_ratio": 0.3, "warmup_num_steps": "auto")"),
           "warmup_steps: 5")
          .config;
  EXPECT_EQ(cosine.lr_scheduler_type, "deepspeed_warmup_cosine");
  EXPECT_EQ(argument(cosine, "warmup_min_ratio"), 0.2);
  EXPECT_EQ(argument(cosine, "cos_min_ratio"), 0.3);
  EXPECT_FALSE(cosine.lr_scheduler_kwargs.contains("total_num_steps"));
  EXPECT_EQ(cosine.warmup_steps, 5);
  // Left out, a parameter has DeepSpeed's default, not ours.
  const Config bare = with(R"({"scheduler": {"type": "WarmupDecayLR"}})").config;
  EXPECT_EQ(bare.warmup_steps, 1000);
  EXPECT_EQ(bare.learning_rate, 0.001);
  EXPECT_EQ(with(R"({"scheduler": {"type": "WarmupLR"}})", "learning_rate: 3e-5").config.learning_rate, 3e-5);
  EXPECT_SAYS(message(R"({"scheduler": {"type": "WarmupDecayLR"}})", "learning_rate: 3e-5"),
              "DeepSpeed's default");
  EXPECT_SAYS(message(scheduler("WarmupLR", R"("total_num_steps": 7)")), "unknown DeepSpeed key");
  EXPECT_SAYS(message(scheduler("WarmupCosineLR", rest)),
              "unknown DeepSpeed key 'scheduler.params.warmup_max_lr'");
  EXPECT_SAYS(message(scheduler("WarmupLR", R"("warmup_type": "cosine", )" + rest)), "log, linear");
  EXPECT_SAYS(message(scheduler("WarmupLR", rest), "lr_scheduler_type: cosine"), "disagree");
}

TEST_F(DeepSpeed, ThePeakOfTheScheduleStandsAboveTheRateOfTheOptimizer) {
  const Resolved r = with(R"({"optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2e-4, "warmup_num_steps": 9}}})");
  EXPECT_EQ(r.config.learning_rate, 2e-4);
  EXPECT_TRUE(notes(r, "'optimizer.params.lr: 0.001' changes nothing here, nor in DeepSpeed"));
}

TEST_F(DeepSpeed, StatesInBf16AreStoredSo) {
  const Config c = with(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})").config;
  EXPECT_EQ(c.param_dtype + c.grad_dtype + c.optim_dtype, "bf16bf16auto");
  const Config all =
      with(
          R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}})")
          .config;
  EXPECT_EQ(all.param_dtype + all.grad_dtype + all.optim_dtype, "bf16bf16bf16");
  EXPECT_SAYS(message(R"({"bf16": {"bf16_optimizer_states": 2}})"), "true or false");
}

TEST_F(DeepSpeed, BrokenFilesAreExplained) {
  EXPECT_SAYS(message("{"), "not valid JSON");
  EXPECT_SAYS(message("[]"), "one object");
  EXPECT_SAYS(message(R"({"bf16": {}, "bf16": {}})"), "twice");
  EXPECT_SAYS(message(std::string(10000, '[')), "JSON");
  EXPECT_SAYS(refusal("deepspeed: /nowhere/ds.json"), "does not exist");
}

TEST_F(DeepSpeed, AnInlineMapIsReadTheSame) {
  const Resolved r = read("deepspeed:\n  zero_optimization: {stage: 1}\n  gradient_clipping: auto\n");
  EXPECT_EQ(r.config.zero_stage, 1);
  EXPECT_SAYS(refusal("deepspeed: {zero_optimization: {stag: 1}}"), "zero_optimization.stag");
}

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
  std::string folder_ = testing::TempDir() + "/octet_include_" + std::to_string(::getpid());
  Included() { std::filesystem::create_directories(folder_ + "/below"); }
  ~Included() override { std::filesystem::remove_all(folder_); }
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

Config verl(const std::string& yaml, const Strings& overrides = {}) {
  return load_text(yaml, "verl.yaml", overrides, quiet(false)).config;
}

TEST(Verl, ItsNestedKeysBecomeOurs) {
  const Config c =
      load_text(R"(
data: {train_files: a.jsonl, train_batch_size: 128, micro_batch_size_per_gpu: 16, max_length: 512, truncation: error, train_max_samples: -1}
model: {partial_pretrain: models/q, fsdp_config: {model_dtype: bf16, cpu_offload: false}, lora_rank: 0}
optim: {lr: 1e-5, betas: [0.9, 0.95], clip_grad: 1.0, lr_scheduler: cosine, lr_warmup_steps_ratio: 0.1}
trainer: {default_local_dir: out, total_epochs: 4, logger: [console], save_freq: -1, test_freq: -1, seed: 1, resume_mode: disable}
)",
                "verl.yaml", {"data.micro_batch_size_per_gpu=8", "+model.fsdp_config.model_dtype=fp32"},
                quiet())
          .config;
  EXPECT_EQ(c.global_batch_size, 128);
  EXPECT_EQ(c.per_device_train_batch_size, 8);
  EXPECT_TRUE(c.bf16) << "what FSDP computes in";
  EXPECT_FALSE(c.pure_bf16) << "and keeps in fp32";
  EXPECT_EQ(c.adam_beta2, 0.95);
  EXPECT_EQ(c.save_strategy, "no");
  EXPECT_EQ(c.eval_strategy, "no");
  EXPECT_EQ(c.output_dir, "out");
  EXPECT_EQ(c.resume_from_checkpoint, "false");
  EXPECT_FALSE(c.max_samples);
  EXPECT_EQ(c.finetuning_type, "full");
  EXPECT_EQ(c.truncation, "error");
}

TEST(Verl, LongRowsEndTheRunOrAreCutInProportion) {
  for (const char* end : {"left", "right"}) {
    const Resolved r =
        load_text(std::string("data: {truncation: ") + end + "}", "verl.yaml", {}, quiet(false));
    EXPECT_EQ(r.config.truncation, "cut");
    EXPECT_TRUE(notes(r, std::string("'data.truncation: ") + end + "' cuts long rows")) << end;
  }
  EXPECT_EQ(verl("data: {truncation: error}", {"data.truncation=right"}).truncation, "cut");
  EXPECT_EQ(verl("data: {truncation: error}", {"truncation=cut"}).truncation, "cut");
  EXPECT_SAYS(refusal("data: {truncation: middle}"), "error, left or right");
  EXPECT_SAYS(refusal("truncation: drop"), "cut, error");
  EXPECT_SAYS(refusal("truncation: error\npack_factor: 2"), "'truncation: error' forbids");
  EXPECT_SAYS(refusal("pack_factor: 0"), "at least 1");
}

TEST(OtherTrainers, AreRecognisedByName) {
  const std::string tune = refusal("tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer}");
  EXPECT_SAYS(tune, "torchtune");
  EXPECT_SAYS(tune, "test.yaml:4");
  EXPECT_SAYS(tune, "learning_rate (optimizer.lr)");
  try {
    load({"train_configs/llama3_8b.toml"}, quiet());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_SAYS(std::string(e.what()), "torchtitan");
    EXPECT_SAYS(std::string(e.what()), "cutoff_len ([training] seq_len)");
  }
}

TEST(Verl, ItsModelIsShardedAndComputedInBf16) {
  const Config plain = verl("model: {partial_pretrain: m}");
  EXPECT_EQ(plain.zero_stage, 3);
  EXPECT_TRUE(plain.bf16 && plain.param_dtype == "auto");
  const Config narrow =
      verl("model: {partial_pretrain: m, strategy: fsdp, fsdp_config: {model_dtype: bfloat16}}");
  EXPECT_EQ(narrow.zero_stage, 3);
  EXPECT_EQ(narrow.param_dtype + narrow.grad_dtype + narrow.optim_dtype, "bf16bf16bf16");
  EXPECT_EQ(verl("model: {strategy: fsdp2}").zero_stage, 3);
  // Whoever says it in our words is believed.
  EXPECT_EQ(verl("model: {partial_pretrain: m, strategy: fsdp2}", {"zero_stage=1"}).zero_stage, 1);
  EXPECT_EQ(verl("model: {partial_pretrain: m}\nzero_stage: 0").zero_stage, 0);
  EXPECT_EQ(verl("model: {partial_pretrain: m}\ndeepspeed: {zero_optimization: {stage: 2}}").zero_stage, 2);
  EXPECT_FALSE(verl("model: {partial_pretrain: m}", {"bf16=false"}).bf16);
  EXPECT_EQ(verl("model_name_or_path: m").zero_stage, 0) << "not verl's";
  EXPECT_SAYS(refusal("model: {strategy: megatron}"), "fsdp or fsdp2");
  EXPECT_SAYS(refusal("model: {fsdp_config: {model_dtype: fp16}}"), "fp32 or bf16");
}

TEST(Verl, ItsResumeModesAreThree) {
  const auto from = [](const std::string& trainer, const Strings& overrides = {}) {
    return verl("trainer: {" + trainer + "}", overrides).resume_from_checkpoint.value_or("null");
  };
  EXPECT_EQ(from("resume_mode: auto"), "auto");
  EXPECT_EQ(from("resume_mode: auto, resume_from_path: null"), "auto");
  EXPECT_EQ(from("resume_mode: auto, resume_from_path: c"), "c");
  EXPECT_EQ(from("resume_mode: disable"), "false");
  EXPECT_EQ(from("resume_mode: disable, resume_from_path: c"), "false");
  EXPECT_EQ(from("resume_mode: resume_path, resume_from_path: c"), "c");
  EXPECT_EQ(from("resume_mode: disable", {"trainer.resume_from_path=c"}), "c") << "the command line counts";
  EXPECT_EQ(from("resume_from_path: c", {"trainer.resume_mode=disable"}), "false");
  EXPECT_EQ(from("resume_mode: resume_path", {"trainer.resume_from_path=c"}), "c");
  EXPECT_EQ(from("resume_mode: auto", {"resume_from_checkpoint=d"}), "d");
  EXPECT_EQ(from("resume_mode: disable", {"trainer.resume_mode=null"}), "null") << "null takes it back";
  EXPECT_SAYS(refusal("trainer: {resume_mode: resume_path}"), "names no checkpoint");
  EXPECT_SAYS(refusal("trainer: {resume_mode: newest}"), "auto, disable or resume_path");
}

TEST(Verl, ItsColumnsAreThoseOfOneKindOfRows) {
  const auto columns = [](const std::string& data, const Strings& overrides = {}) {
    const Config c = verl("data: {" + data + "}", overrides);
    return c.messages_column.value_or("-") + " " + c.prompt_column.value_or("-") + " " +
           c.response_column.value_or("-");
  };
  const std::string both = "prompt_key: q, response_key: a, multiturn: {enable: ";
  EXPECT_EQ(columns(both + "false, messages_key: m}"), "- q a");
  EXPECT_EQ(columns(both + "true, messages_key: m}"), "m - -");
  EXPECT_EQ(columns(both + "true}"), "messages - -");
  EXPECT_EQ(columns("multiturn: {messages_key: m}"), "m - -");
  EXPECT_EQ(columns("messages_key: m"), "m - -");
  EXPECT_EQ(columns(both + "false, messages_key: m}", {"data.multiturn.enable=true"}), "m - -");
  EXPECT_EQ(columns(both + "true, messages_key: m}", {"+data.multiturn.messages_key=n"}), "n - -");
  EXPECT_SAYS(refusal("data: {prompt_key: q}"), "response_column");
  EXPECT_SAYS(refusal("data: {multiturn: {enable: maybe}}"), "true or false");
}

TEST(Verl, ItsAdaptersAreAskedForByTheirRank) {
  const Config c = verl("model: {lora_rank: 32, lora_alpha: 8, target_modules: [q_proj]}");
  EXPECT_EQ(c.finetuning_type, "lora");
  EXPECT_EQ(c.lora_rank, 32);
  EXPECT_EQ(c.lora_alpha, 8);
  EXPECT_EQ(c.lora_target, Strings{"q_proj"});
  const Config usual = verl("model: {lora_rank: 4, target_modules: all-linear}");
  EXPECT_EQ(usual.lora_alpha, 16) << "verl's default";
  EXPECT_EQ(usual.lora_target, Strings{"all"});
  EXPECT_EQ(verl("model: {lora_rank: 0, lora_alpha: 16, target_modules: all-linear}").finetuning_type,
            "full");
  const std::string defaults = "lora_alpha: 16, target_modules: all-linear, lora_rank: ";
  EXPECT_EQ(verl("model: {" + defaults + "0}", {"model.lora_rank=4"}).lora_rank, 4);
  EXPECT_EQ(verl("model: {" + defaults + "0}", {"model.lora_rank=4"}).finetuning_type, "lora");
  EXPECT_EQ(verl("model: {" + defaults + "32}", {"model.lora_rank=0"}).finetuning_type, "full");
  EXPECT_EQ(verl("model: {" + defaults + "32, lora_adapter_path: a}").adapter_name_or_path, "a");
}

TEST(Verl, WhatItCannotHaveHereIsRefusedUnlessItAsksForNothing) {
  EXPECT_NO_THROW(verl("ulysses_sequence_parallel_size: 1\ndata: {custom_cls: {path: null, name: null}}"));
  EXPECT_SAYS(refusal("ulysses_sequence_parallel_size: 2"), "not split over ranks");
  EXPECT_SAYS(refusal("data: {custom_cls: {path: x.py}}"), "no code of others is run");
  EXPECT_SAYS(refusal("data: {multiturn: {tools_key: functions}}"), "the column 'tools'");
  EXPECT_NO_THROW(verl("ulysses_sequence_parallel_size: 2", {"ulysses_sequence_parallel_size=1"}))
      << "the command line takes it back";
}

// A value that is not supported is one only if it is what counts.
TEST(Sources, ARefusedValueOfAFileCanBeReplaced) {
  EXPECT_EQ(read("finetuning_type: oft", {"finetuning_type=full"}).config.finetuning_type, "full");
  EXPECT_EQ(read("save_strategy: best", {"save_strategy=null"}).config.save_strategy, "steps");
  EXPECT_NO_THROW(read("use_galore: true", {"use_galore=false"}));
  EXPECT_EQ(read("tuning: {mode: oft}", {"tuning.mode=full"}).config.finetuning_type, "full");
  EXPECT_SAYS(refusal("finetuning_type: full", {"finetuning_type=oft"}), "command line");
  EXPECT_SAYS(refusal("optim: adafactor\nuse_galore: true"), "is not supported");
}

TEST(Sources, NullOnTheCommandLineTakesBackWhatAFileSaysInItsOwnWords) {
  const std::string file = "train: {max_steps: 7, learning_rate: 0.5}\ndata: {train_path: d}\n";
  const Config c =
      load_text(file, "play.yaml", {"train.max_steps=null", "train.learning_rate=null"}, quiet(false)).config;
  EXPECT_EQ(c.max_steps, -1);
  EXPECT_EQ(c.learning_rate, Config().learning_rate);
}

TEST(Sources, TheSameValueTwiceIsOneValue) {
  EXPECT_EQ(read("train: {learning_rate: 1e-4}\nlearning_rate: 0.0001").config.learning_rate, 1e-4);
  EXPECT_SAYS(refusal("train: {learning_rate: 1e-4}\nlearning_rate: 0.0002"), "given twice");
}

TEST(Sources, AListIsReferredToAsAWhole) {
  EXPECT_EQ(read("lora_target: [a, b]\nadditional_target: ${lora_target}\nfinetuning_type: lora")
                .config.additional_target,
            (Strings{"a", "b"}));
}

// The shell expands ~ only at the beginning of a word.
TEST(Paths, OfTheHomeFolderAreFound) {
  const LoadOptions options{.for_training = false, .environment = {{"HOME", "/home/me"}}};
  const Config c =
      load_text("model_name_or_path: ~/m\ndataset: [~/a, b/~]\noutput_dir: ~/o", "t.yaml", {}, options)
          .config;
  EXPECT_EQ(c.model_name_or_path, "/home/me/m");
  EXPECT_EQ(c.dataset, (Strings{"/home/me/a", "b/~"}));
  EXPECT_EQ(c.output_dir, "/home/me/o");
}

TEST(Paths, AModelOfTheHubIsFoundInItsCache) {
  const std::string hub = testing::TempDir() + "/octet_hub_" + std::to_string(::getpid());
  std::filesystem::create_directories(hub + "/models--org--m/snapshots/abc");
  std::filesystem::create_directories(hub + "/models--org--m/refs");
  write_file_atomically(hub + "/models--org--m/refs/main", "abc");
  const LoadOptions options{.for_training = false, .environment = {{"HF_HUB_CACHE", hub}}};
  const Resolved r = load_text("model_name_or_path: org/m", "t.yaml", {}, options);
  EXPECT_EQ(r.config.model_name_or_path, hub + "/models--org--m/snapshots/abc");
  EXPECT_TRUE(notes(r, "is taken from Hugging Face's cache"));
  EXPECT_EQ(load_text("model_name_or_path: org/n", "t.yaml", {}, options).config.model_name_or_path, "org/n");
  EXPECT_EQ(load_text("model_name_or_path: org/m\nmodel_revision: v2", "t.yaml", {}, options)
                .config.model_name_or_path,
            "org/m");
  std::filesystem::remove_all(hub);
}

}  // namespace
}  // namespace octet::config::test
