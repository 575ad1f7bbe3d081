// verl's files and arguments.
#include "config/support.h"

namespace octet::config::test::verl_test {
namespace {

Config verl(const std::string& yaml, const Strings& overrides = {}) {
  return load_text(yaml, "verl.yaml", overrides, quiet(false)).config;
}

TEST(Verl, FsdpSizeIsAShardingGroup) {
  const auto group = [](const std::string& size, const Strings& overrides = {}) {
    return load_text("model: {partial_pretrain: models/q, fsdp_config: {fsdp_size: " + size +
                         "}}\ndata: {train_files: a.jsonl}\ntrainer: {default_local_dir: out}\n",
                     "verl.yaml", overrides, quiet())
        .config.zero_group_size;
  };
  EXPECT_EQ(group("8"), "8");
  EXPECT_EQ(group("-1"), std::nullopt);
  EXPECT_EQ(group("-1", {"model.fsdp_config.fsdp_size=4"}), "4");
  EXPECT_THROW(group("0"), Error);
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

TEST(Verl, ItsModelIsShardedAndComputedInBf16) {
  const Config plain = verl("model: {partial_pretrain: m}");
  EXPECT_EQ(plain.zero_stage, 3);
  EXPECT_TRUE(plain.bf16 && plain.param_dtype == "auto");
  const Config narrow =
      verl("model: {partial_pretrain: m, strategy: fsdp, fsdp_config: {model_dtype: bfloat16}}");
  EXPECT_EQ(narrow.zero_stage, 3);
  EXPECT_EQ(narrow.param_dtype + narrow.grad_dtype + narrow.optim_dtype, "bf16bf16bf16");
  EXPECT_EQ(verl("model: {strategy: fsdp2}").zero_stage, 3);
  // Our own keys win over verl's.
  EXPECT_EQ(verl("model: {partial_pretrain: m, strategy: fsdp2}", {"zero_stage=1"}).zero_stage, 1);
  EXPECT_EQ(verl("model: {partial_pretrain: m}\nzero_stage: 0").zero_stage, 0);
  EXPECT_EQ(verl("model: {partial_pretrain: m}\ndeepspeed: {zero_optimization: {stage: 2}}").zero_stage, 2);
  EXPECT_FALSE(verl("model: {partial_pretrain: m}", {"bf16=false"}).bf16);
  EXPECT_EQ(verl("model_name_or_path: m").zero_stage, 0) << "not verl's";
  EXPECT_EQ(verl("model: {partial_pretrain: m}", {"model_name_or_path=n"}).zero_stage, 3)
      << "verl's with another model";
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
  EXPECT_SAYS(refusal("data: {prompt_key: q}"), "data.prompt_key is given without data.response_key");
  EXPECT_SAYS(refusal("data: {response_key: q}"), "give data.prompt_key, too, or remove data.response_key");
  EXPECT_SAYS(refusal("prompt_column: q"), "prompt_column is given without response_column");
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
  EXPECT_SAYS(refusal("data: {custom_cls: {path: x.py}}"), "no foreign code is run");
  EXPECT_SAYS(refusal("data: {multiturn: {tools_key: functions}}"), "the column 'tools'");
  EXPECT_NO_THROW(verl("ulysses_sequence_parallel_size: 2", {"ulysses_sequence_parallel_size=1"}))
      << "the command line takes it back";
}

}  // namespace
}  // namespace octet::config::test::verl_test
