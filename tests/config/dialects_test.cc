#include <unistd.h>

#include <filesystem>

#include "config/support.h"

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
  EXPECT_EQ(c.lr_scheduler_type, "linear");
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
  EXPECT_EQ(c.learning_rate, 2e-4);
  EXPECT_EQ(c.eval_strategy, "steps");
  EXPECT_EQ(c.dataset, Strings{"train.jsonl"});
  EXPECT_EQ(c.stage, "pt");
  EXPECT_EQ(c.logging_steps, 5);
  EXPECT_TRUE(c.tensorboard());
  EXPECT_TRUE(notes(r, "tuning.backend"));
}

TEST(SftPlay, WhatIsNotBuiltIsRefusedByItsOwnName) {
  EXPECT_SAYS(refusal("tuning: {mode: qlora}"), "tuning.mode");
  EXPECT_SAYS(refusal("train: {batch_size: auto}"), "train.batch_size");
  EXPECT_SAYS(refusal("train: {lerning_rate: 1}"), "did you mean 'train.learning_rate'?");
  EXPECT_SAYS(refusal("train: {learning_rate: x}"), "train.learning_rate");
  EXPECT_SAYS(refusal("train: {learning_rate: 1}\nlearning_rate: 2"), "given twice");
  EXPECT_SAYS(refusal("include: base.yaml"), "include");
  EXPECT_SAYS(refusal("task_mode: cpt_mixed"), "task_mode");
  EXPECT_SAYS(refusal("train: 3"), "unknown key 'train'");
}

TEST(Verl, ItsNestedKeysBecomeOurs) {
  const Config c =
      load_text(R"(
data: {train_files: a.jsonl, train_batch_size: 128, micro_batch_size_per_gpu: 16, max_length: 512, truncation: error, train_max_samples: -1}
model: {partial_pretrain: models/q, fsdp_config: {model_dtype: bf16, cpu_offload: false}, lora_rank: 0}
optim: {lr: 1e-5, betas: [0.9, 0.95], clip_grad: 1.0, lr_scheduler: cosine, lr_warmup_steps_ratio: 0.1}
trainer: {default_local_dir: out, total_epochs: 4, logger: [console], save_freq: -1, test_freq: -1, seed: 1, resume_mode: disable}
)",
                "verl.yaml", {"data.micro_batch_size_per_gpu=8", "model.fsdp_config.model_dtype=fp32"},
                quiet())
          .config;
  EXPECT_EQ(c.global_batch_size, 128);
  EXPECT_EQ(c.per_device_train_batch_size, 8);
  EXPECT_FALSE(c.bf16);
  EXPECT_EQ(c.adam_beta2, 0.95);
  EXPECT_EQ(c.save_strategy, "no");
  EXPECT_EQ(c.eval_strategy, "no");
  EXPECT_EQ(c.output_dir, "out");
  EXPECT_EQ(c.resume_from_checkpoint, "false");
  EXPECT_FALSE(c.max_samples);
}

}  // namespace
}  // namespace octet::config::test
