
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "config/support.h"
#include "support/temporary_folder.h"

namespace octet::config::test::load_test {
namespace {

// The YAML of a LLaMA-Factory guide, with every key it uses.
constexpr const char* kGuide = R"(### model
model_name_or_path: meta-llama/Llama-3.1-8B
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: full
# deepspeed: configs/ds_z0_single_gpu_config.json
### dataset
dataset: ultrachat_200k
template: llama3
cutoff_len: 4096
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 8
dataloader_pin_memory: true
### output
output_dir: saves/llama3-8b/full/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
report_to: none
### train
per_device_train_batch_size: 6
gradient_accumulation_steps: 4
gradient_checkpointing: true
learning_rate: 2e-4
num_train_epochs: 2.0
lr_scheduler_type: cosine
warmup_steps: 100
fp8: true
fp8_backend: te
fp8_enable_fsdp_float8_all_gather: false
bf16: true
tf32: true
flash_attn: fa2
optim_state_cpu_offload: true
per_device_eval_batch_size: 1
max_samples: 1000
)";

TEST(Load, AGuideOfLlamaFactoryLoadsVerbatim) {
  const Resolved r = load_text(kGuide, "guide.yaml", {}, quiet());
  const Config& c = r.config;
  EXPECT_EQ(c.model_name_or_path, "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(c.dataset, Strings{"ultrachat_200k"});
  EXPECT_EQ(c.template_name, "llama3");
  EXPECT_EQ(c.cutoff_len, 4096);
  EXPECT_EQ(c.preprocessing_num_workers, 16);
  EXPECT_EQ(c.per_device_train_batch_size, 6);
  EXPECT_EQ(c.gradient_accumulation_steps, 4);
  EXPECT_EQ(c.learning_rate, 2e-4);
  EXPECT_EQ(c.num_train_epochs, 2.0);
  EXPECT_EQ(c.lr_scheduler_type, "cosine");
  EXPECT_EQ(c.recompute(), "full");
  EXPECT_TRUE(c.fp8 && c.bf16 && c.plot_loss && c.overwrite_output_dir && c.optim_state_cpu_offload);
  EXPECT_FALSE(c.tensorboard());
  EXPECT_FALSE(c.packing);
  EXPECT_TRUE(notes(r, "flash_attn"));
  EXPECT_TRUE(notes(r, "fp8_backend: te"));
  EXPECT_EQ(r.origins.at("learning_rate").where, "guide.yaml:28");
}

TEST(Load, AnExampleOfLlamaFactoryLoadsVerbatim) {
  const Resolved r = load_text(R"(### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: full
deepspeed: {zero_optimization: {stage: 1, overlap_comm: false, contiguous_gradients: true, sub_group_size: 1e9}, bf16: {enabled: auto}, fp16: {enabled: auto, loss_scale: 0}, train_batch_size: auto, train_micro_batch_size_per_gpu: auto, gradient_clipping: auto, zero_allow_untested_optimizer: true}  # choices: [z0, z2]
### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
preprocessing_num_workers: 16
dataloader_num_workers: 4
### output
output_dir: saves/llama3-8b/full/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none  # choices: [none, wandb, tensorboard, swanlab, mlflow]
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
)",
                               "example.yaml", {}, quiet());
  EXPECT_EQ(r.config.dataset, (Strings{"identity", "alpaca_en_demo"}));
  EXPECT_EQ(r.config.zero_stage, 1);
  EXPECT_EQ(r.config.ddp_timeout, 180000000);
  EXPECT_EQ(r.config.warmup_ratio, 0.1);
}

TEST(Load, DefaultsAreThoseOfHuggingFace) {
  const Config c = read("").config;
  EXPECT_EQ(c.per_device_train_batch_size, 8);
  EXPECT_EQ(c.learning_rate, 5e-5);
  EXPECT_EQ(c.adam_beta2, 0.999);
  EXPECT_EQ(c.num_train_epochs, 3.0);
  EXPECT_EQ(c.seed, 42);
  EXPECT_EQ(c.cutoff_len, 2048);
  EXPECT_EQ(c.zero_stage, 0);
  EXPECT_TRUE(c.overlap_comm);
  EXPECT_EQ(c.recompute(), "none");
}

TEST(Load, NumbersAreReadAsAPersonMeansThem) {
  EXPECT_EQ(read("learning_rate: 2e-4").config.learning_rate, 2e-4);
  EXPECT_EQ(read("learning_rate: 2.0E-4").config.learning_rate, 2e-4);
  EXPECT_EQ(read("learning_rate: '3e-4'").config.learning_rate, 3e-4);
  EXPECT_EQ(read("learning_rate: .5").config.learning_rate, 0.5);
  EXPECT_EQ(read("learning_rate: +1").config.learning_rate, 1);
  EXPECT_EQ(read("max_steps: 1_000").config.max_steps, 1000);
  EXPECT_EQ(read("max_steps: 1e3").config.max_steps, 1000);
  EXPECT_EQ(read("max_steps: 2.0").config.max_steps, 2);
  EXPECT_EQ(read("max_steps: -1").config.max_steps, -1);
}

TEST(Load, NumbersWithTwoMeaningsAreRefused) {
  EXPECT_SAYS(refusal("max_steps: 010"), "leave out the leading zero");
  for (const char* text :
       {".nan", ".inf", "-.inf", "nan", "inf",  "1:30",  "0x10", "1__0", "_1",     "1_",
        "1e",   "--1",  "+-1",   "1.5", "1e30", "'1 2'", "''",   "[1]",  "{a: 1}", "true"}) {
    EXPECT_SAYS(refusal(std::string("max_steps: ") + text), "max_steps") << text;
  }
  for (const char* text : {".nan", ".inf", "1e999", "nan", "infinity", "-1", "two"}) {
    EXPECT_SAYS(refusal(std::string("learning_rate: ") + text), "learning_rate") << text;
  }
}

TEST(Load, BoolsAreReadInAllTheirSpellings) {
  for (const char* text : {"true", "True", "TRUE", "yes", "on", "'true'"}) {
    EXPECT_TRUE(read(std::string("plot_loss: ") + text).config.plot_loss) << text;
  }
  for (const char* text : {"false", "no", "Off"})
    EXPECT_FALSE(read(std::string("overlap_comm: ") + text).config.overlap_comm);
  for (const char* text : {"1", "y", "maybe", "[true]"}) {
    EXPECT_SAYS(refusal(std::string("plot_loss: ") + text), "true or false");
  }
}

TEST(Load, NullMeansTheDefault) {
  const Config c =
      read("max_samples: null\nsave_total_limit: ~\ncutoff_len:\ngradient_accumulation_steps: none").config;
  EXPECT_FALSE(c.max_samples || c.save_total_limit || c.gradient_accumulation_steps);
  EXPECT_EQ(c.cutoff_len, 2048);
}

TEST(Load, TextKeepsItsSpelling) {
  EXPECT_EQ(read("run_name: 010").config.run_name, "010");
  EXPECT_EQ(read("run_name: 'null'").config.run_name, "null");
  EXPECT_EQ(read("default_system: \"a: b\\n\"").config.default_system, "a: b\n");
}

TEST(Load, DatasetsAreAListOrSeparatedByCommas) {
  const auto sets = [](const std::string& value) {
    return load_text("model_name_or_path: m\noutput_dir: o\ndataset: " + value, "t.yaml", {}, quiet())
        .config.dataset;
  };
  EXPECT_EQ(sets("a, b,c"), (Strings{"a", "b", "c"}));
  EXPECT_EQ(sets("[a, b]"), (Strings{"a", "b"}));
  EXPECT_EQ(sets("'data/*.jsonl'"), Strings{"data/*.jsonl"});
  EXPECT_THROW(sets("a,,b"), Error);
  EXPECT_THROW(sets("[[a]]"), Error);
  EXPECT_THROW(sets("{a: b}"), Error);
}

TEST(Load, UnknownKeysNameTheNearestOneTheFileAndTheLine) {
  const std::string message = refusal("lerning_rate: 1");
  EXPECT_SAYS(message, "lerning_rate");
  EXPECT_SAYS(message, "'learning_rate'");
  EXPECT_SAYS(message, "test.yaml:4");
  EXPECT_SAYS(refusal("", {"--qqqqqqq=1"}), "unknown key 'qqqqqqq'");
}

TEST(Load, DuplicateKeysNameBothLines) {
  const std::string message = refusal("seed: 1\nseed: 2");
  EXPECT_SAYS(message, "'seed' occurs twice");
  EXPECT_SAYS(message, "line 4");
  EXPECT_SAYS(message, "line 5");
  EXPECT_SAYS(refusal("val_size: 0.1\neval_strategy: no\nevaluation_strategy: steps"), "given twice");
}

TEST(Load, RangesAreChecked) {
  for (const char* yaml : {"learning_rate: -1",
                           "adam_beta1: 1",
                           "adam_beta2: 1.5",
                           "adam_epsilon: 0",
                           "cutoff_len: 0",
                           "per_device_train_batch_size: 0",
                           "per_device_train_batch_size: 10000000",
                           "gradient_accumulation_steps: 0",
                           "max_steps: 0",
                           "max_steps: -2",
                           "seed: -1",
                           "seed: 9007199254740993000",
                           "warmup_ratio: 1.1",
                           "val_size: -1",
                           "val_size: 1.5",
                           "save_total_limit: 0",
                           "num_train_epochs: 0",
                           "logging_steps: 0",
                           "logging_steps: 2.5",
                           "fp8_amax_history_len: 0",
                           "global_batch_size: 0",
                           "ddp_timeout: 0",
                           "gpu_hour_price: -1",
                           "zero_stage: 4",
                           "warmup_steps: 1.5",
                           "save_steps: 1.5"}) {
    EXPECT_FALSE(refusal(yaml).empty()) << yaml;
  }
}

TEST(Load, WrongWordsNameTheNearestChoice) {
  EXPECT_SAYS(refusal("lr_scheduler_type: cosin"), "did you mean 'cosine'?");
  EXPECT_SAYS(refusal("eval_strategy: yes\nval_size: 0.1"), "no, steps, epoch");
  EXPECT_SAYS(refusal("fp8: true\nfp8_fast_accumulation: backward"), "forward, all");
  EXPECT_EQ(read("lr_scheduler_type: Cosine").config.lr_scheduler_type, "cosine");
  EXPECT_EQ(read("eval_strategy: no").config.eval_strategy, "no");
  EXPECT_EQ(read("eval_strategy: false").config.eval_strategy, "no");
  EXPECT_EQ(read("deterministic: True").config.deterministic, "true");
}

TEST(Load, KeysOfAdaptersThatContradictAreRefused) {
  const std::string lora = "finetuning_type: lora\n";
  EXPECT_SAYS(refusal(lora + "lora_dropout: 1"), "below 1");
  EXPECT_SAYS(refusal(lora + "lora_dropout: 0.1\nuse_dora: true"), "dropout with DoRA");
  EXPECT_SAYS(refusal(lora + "loraplus_lr_ratio: 0"), "above 0");
  EXPECT_SAYS(refusal("use_dora: true"), "finetuning_type is not set");
  EXPECT_SAYS(refusal("loraplus_lr_ratio: 16"), "finetuning_type is not set");
  EXPECT_SAYS(refusal("finetuning_type: freeze\nlora_target: q_proj"), "freeze_trainable_modules");
  EXPECT_SAYS(refusal("finetuning_type: freeze\ntrain_from_scratch: true"), "train_from_scratch");
  EXPECT_EQ(read("finetuning_type: freeze\nlora_target: all").config.finetuning_type, "freeze");
  EXPECT_EQ(read(lora + "lora_dropout: 0.1\nloraplus_lr_ratio: 16").config.loraplus_lr_ratio, 16.0);
  EXPECT_EQ(read("finetuning_type: freeze\nfreeze_trainable_modules: mlp,input_layernorm")
                .config.freeze_trainable_modules.size(),
            2u);
  const auto notes = read("finetuning_type: full\nfreeze_trainable_layers: 3").notes;
  EXPECT_TRUE(std::ranges::any_of(notes, [](const std::string& note) {
    return note.find("read only with finetuning_type: freeze") != std::string::npos;
  }));
}

TEST(Load, WhatIsNotBuiltIsRefusedWithAReason) {
  for (const char* yaml :
       {"pissa_init: true", "stage: ppo", "finetuning_type: lora\nquantization_bit: 8",
        "quantization_type: fp4", "quantization_method: hqq", "fp16: true", "use_galore: true",
        "optim: adafactor", "use_asft_loss: true", "do_predict: true", "fsdp: full_shard",
        "rope_scaling: yarn", "fp8_enable_fsdp_float8_all_gather: true", "do_train: false",
        "group_by_length: true", "average_tokens_across_devices: false", "fsdp_config: {a: 1}"}) {
    EXPECT_SAYS(refusal(yaml), "is not supported");
    EXPECT_SAYS(refusal(yaml), "to do:") << yaml;
  }
}

TEST(Load, AdaptersAreAskedForByFinetuningType) {
  const Resolved r =
      read("finetuning_type: lora\nlora_rank: 16\nlora_target: q_proj,v_proj\nuse_rslora: true");
  EXPECT_EQ(r.config.lora_rank, 16);
  EXPECT_EQ(r.config.lora_target, (Strings{"q_proj", "v_proj"}));
  EXPECT_TRUE(r.config.use_rslora);
  EXPECT_EQ(read("").config.lora_target, Strings{"all"});
  // LLaMA-Factory would train adapters for these keys, so full training needs an explicit finetuning_type.
  for (const std::string key :
       {"lora_rank: 8", "lora_alpha: 16", "lora_target: all", "additional_target: lm_head",
        "adapter_name_or_path: runs/a", "use_rslora: true"}) {
    EXPECT_SAYS(refusal(key), "finetuning_type: lora, the default of LLaMA-Factory") << key;
    const Resolved full = read("finetuning_type: full\n" + key);
    ASSERT_EQ(full.notes.size(), key == "lora_rank: 8" || key == "lora_target: all" ? 0u : 1u);
    for (const std::string& note : full.notes) EXPECT_SAYS(note, "read only with finetuning_type: lora");
  }
  EXPECT_SAYS(refusal("finetuning_type: lora\nlora_dropout: 1.5"), "lora_dropout");
  EXPECT_SAYS(refusal("finetuning_type: lora\nlora_rank: 0"), "lora_rank");
  EXPECT_SAYS(refusal("finetuning_type: lora\nlora_alpha: .nan"), "lora_alpha");
  const Config several =
      read("finetuning_type: lora\nadapter_name_or_path: a,b\ncreate_new_adapter: true").config;
  EXPECT_EQ(several.adapter_name_or_path, "a,b");
  EXPECT_TRUE(several.create_new_adapter);
  EXPECT_SAYS(refusal("finetuning_type: lora\ncreate_new_adapter: true"), "needs adapters to add");
  EXPECT_SAYS(refusal("finetuning_type: lora\nadapter_name_or_path: a\ntrain_from_scratch: true"),
              "begins with random weights");
  EXPECT_SAYS(refusal("adapter_name_or_path: a"), "'adapter_name_or_path' is for adapters");
}

// LLaMA-Factory's examples/train_lora/llama3_lora_kto.yaml.
TEST(Load, AnExampleOfJudgedAnswersIsReadUnchanged) {
  const Resolved r = read(
      "stage: kto\ndo_train: true\nfinetuning_type: lora\nlora_target: all\npref_beta: 0.1\n"
      "template: llama3\ncutoff_len: 2048\nmax_samples: 1000\noverwrite_cache: true\n"
      "preprocessing_num_workers: 16\nlogging_steps: 10\nsave_steps: 500\nplot_loss: true\n"
      "overwrite_output_dir: true\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
      "learning_rate: 5.0e-6\nnum_train_epochs: 3.0\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\n"
      "bf16: true\nddp_timeout: 180000000\nval_size: 0.1\nper_device_eval_batch_size: 1\n"
      "eval_strategy: steps\neval_steps: 500");
  EXPECT_EQ(r.config.stage, "kto");
  EXPECT_EQ(r.config.pref_beta, 0.1);
  // TRL's names of the weights.
  const Config weighted = read("stage: kto\ndesirable_weight: 1.5\nundesirable_weight: 0.5").config;
  EXPECT_EQ(weighted.kto_chosen_weight, 1.5);
  EXPECT_EQ(weighted.kto_rejected_weight, 0.5);
  EXPECT_SAYS(refusal("stage: kto\ncompute_accuracy: true"), "the loss of judged answers");
}

// LLaMA-Factory's examples/train_lora/llama3_lora_reward.yaml.
TEST(Load, AnExampleOfARewardModelIsReadUnchanged) {
  const Resolved r = read(
      "trust_remote_code: true\nstage: rm\ndo_train: true\nfinetuning_type: lora\nlora_rank: 8\n"
      "lora_target: all\ntemplate: llama3\ncutoff_len: 2048\nmax_samples: 1000\noverwrite_cache: true\n"
      "preprocessing_num_workers: 16\nlogging_steps: 10\nsave_steps: 500\nplot_loss: true\n"
      "overwrite_output_dir: true\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
      "learning_rate: 1.0e-4\nnum_train_epochs: 3.0\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\n"
      "bf16: true\nddp_timeout: 180000000");
  EXPECT_EQ(r.config.stage, "rm");
  EXPECT_EQ(r.config.additional_target, Strings{"score"}) << "the head is new";
  EXPECT_EQ(read("stage: rm\nfinetuning_type: lora\nadditional_target: score").config.additional_target,
            Strings{"score"});
  EXPECT_EQ(read("stage: rm").config.additional_target, Strings{}) << "everything is trained";
  const std::string dropout = "finetuning_type: lora\nlora_dropout: 0.1\nstage: ";
  EXPECT_EQ(read(dropout + "rm").config.lora_dropout, 0.1);
  EXPECT_EQ(read(dropout + "kto").config.lora_dropout, 0.0);
  EXPECT_TRUE(notes(read("stage: rm\npref_beta: 0.5"), "read only with stage: dpo or kto"));
}

// A value that the command line replaces is not refused.
TEST(Load, ARefusedValueThatIsReplacedIsNotRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {"finetuning_type: oft", "finetuning_type=full"},
      {"stage: ppo", "stage=sft"},
      {"fp16: true", "fp16=false"},
      {"fp16: true", "fp16=null"},
      {"use_galore: true", "use_galore=false"},
      {"optim: lion_8bit", "optim=adamw_8bit"},
      {"resize_vocab: true", "resize_vocab=null"},
      {"data: {custom_cls: {path: a.py}}", "data.custom_cls=null"},
      {"model: {fsdp_config: {offload_params: true}}", "model.fsdp_config.offload_params=false"},
      {"tuning: {mode: oft}", "tuning.mode=lora"},
      {"tuning: {mode: oft}", "finetuning_type=full"}};
  for (const auto& [yaml, argument] : cases) {
    EXPECT_NO_THROW(load_text(yaml, "test.yaml", {argument}, quiet(false))) << yaml << " " << argument;
    EXPECT_SAYS(refusal(yaml), "is not supported");
  }
  // The single word for adapters and a quantised base is replaced as a whole.
  const Config full =
      load_text("tuning: {mode: qlora}", "test.yaml", {"finetuning_type=full"}, quiet(false)).config;
  EXPECT_EQ(full.finetuning_type, "full");
  EXPECT_FALSE(full.quantization_bit);
}

TEST(Load, ABaseIn4BitsIsThatOfAdapters) {
  const Resolved r = read("finetuning_type: lora\nquantization_bit: 4");
  EXPECT_EQ(r.config.quantization_bit, 4);
  EXPECT_TRUE(r.config.double_quantization) << "as in LLaMA-Factory";
  EXPECT_FALSE(read("finetuning_type: lora\nquantization_bit: 4\ndouble_quantization: false")
                   .config.double_quantization);
  const Resolved q = read("finetuning_type: qlora");
  EXPECT_EQ(q.config.finetuning_type, "lora");
  EXPECT_EQ(q.config.quantization_bit, 4);
  EXPECT_SAYS(refusal("quantization_bit: 4"), "needs 'finetuning_type: lora'");
  EXPECT_SAYS(refusal("finetuning_type: full\nquantization_bit: 4"), "needs 'finetuning_type: lora'");
  EXPECT_SAYS(refusal("finetuning_type: lora\nquantization_bit: 3"), "set quantization_bit: 4");
  EXPECT_SAYS(refusal("finetuning_type: lora\nquantization_bit: 4\nadapter_name_or_path: a,b"),
              "supports only one adapter");
  EXPECT_SAYS(
      refusal(
          "finetuning_type: lora\nquantization_bit: 4\nadapter_name_or_path: a\ncreate_new_adapter: true"),
      "supports only one adapter");
  EXPECT_NO_THROW(read("finetuning_type: lora\nquantization_bit: 4\nadapter_name_or_path: a"));
  EXPECT_SAYS(refusal("finetuning_type: lora\nquantization_bit: 8"), "fp8: true");
  EXPECT_SAYS(refusal("finetuning_type: lora\nquantization_bit: 4\nquantization_type: fp4"), "fp4");
  EXPECT_SAYS(refusal("finetuning_type: lora\nquantization_bit: 4\nquantization_method: gptq"),
              "as bitsandbytes does it");
  EXPECT_SAYS(refusal("finetuning_type: lora\nquantization_bit: 4\npissa_init: true"), "pissa_init");
  const Resolved full = read("finetuning_type: full\ndouble_quantization: false");
  ASSERT_EQ(full.notes.size(), 1u);
  EXPECT_SAYS(full.notes[0], "read only with quantization_bit");
}

TEST(Load, ANarrowGatherNeedsSomethingToGather) {
  EXPECT_SAYS(refusal("expert_parallel_size: 2\nsdc_steps: 10\nsdc_replay_steps: 10\ndeterministic: true"),
              "'expert_parallel_size: 2' and 'sdc_replay_steps: 10' together are not built");
  EXPECT_SAYS(refusal("expert_parallel_size: 2\nerror_feedback: true\nreduce_dtype: int8"),
              "'expert_parallel_size: 2' and 'error_feedback: true' together are not built");
  EXPECT_SAYS(refusal("error_feedback: true"),
              "'error_feedback: true' has no meaning with 'reduce_dtype: fp32'");
  EXPECT_TRUE(read("error_feedback: true\nreduce_dtype: int8\n").config.error_feedback);
  EXPECT_SAYS(refusal("gather_dtype: fp8"), "'gather_dtype: fp8' has no meaning with 'zero_stage: 0'");
  EXPECT_SAYS(refusal("exchange_dtype: fp8"),
              "'exchange_dtype: fp8' has no meaning with 'expert_parallel_size: 1'");
  EXPECT_SAYS(refusal("exchange_rows_factor: 1.5"),
              "'exchange_rows_factor: 1.5' has no meaning with 'expert_parallel_size: 1'");
  EXPECT_SAYS(refusal("expert_parallel_size: 2\nexchange_rows_factor: 0.5"), "a number of at least 1");
  EXPECT_SAYS(refusal("deterministic: strict\nexpert_parallel_size: 2\nexchange_dtype: fp8"),
              "exchange_dtype: compute");
  EXPECT_EQ(read("exchange_dtype: fp8\nexpert_parallel_size: 2\n").config.exchange_dtype, "fp8");
  EXPECT_EQ(read("gather_dtype: fp8\nzero_stage: 1\n").config.gather_dtype, "fp8");
  EXPECT_EQ(read("gather_dtype: bf16\nzero_stage: 3\n").config.gather_dtype, "bf16");
}

TEST(Load, AShardingGroupIsANumberOfRanksOrAWord) {
  for (const char* wrong : {"0", "-2", "1.5", "host", "[2]", "2000000"})
    EXPECT_NE(refusal(std::string("zero_stage: 2\nzero_group_size: ") + wrong), "") << wrong;
  EXPECT_SAYS(refusal("zero_stage: 2\nzero_group_size: 0"), "'zero_group_size: 0' is no size of a group");
  EXPECT_SAYS(refusal("zero_stage: 2\nzero_group_size: host"), "auto, node, or a number of ranks from 1 on");
  EXPECT_SAYS(refusal("zero_group_size: 2"), "'zero_group_size: 2' has no meaning with 'zero_stage: 0'");
  EXPECT_SAYS(refusal("zero_stage: 2\nzero_group_size: 2\nexpert_parallel_size: 2"),
              "'zero_group_size: 2' and 'expert_parallel_size: 2' together are not built");
  EXPECT_SAYS(refusal("zero_stage: 2\nzero_group_size: node\nerror_feedback: true\nreduce_dtype: int8"),
              "'zero_group_size: node' and 'error_feedback: true' together are not built");
  EXPECT_SAYS(refusal("zero_stage: 2\nzero_group_size: auto\nsdc_steps: 10"),
              "'zero_group_size: auto' and 'sdc_steps: 10' together are not built");
  EXPECT_EQ(read("zero_stage: 3\nzero_group_size: 8\n").config.zero_group_size, "8");
  EXPECT_EQ(read("zero_stage: 3\nzero_group_size: Node\n").config.zero_group_size, "node");
  EXPECT_EQ(read("zero_stage: 3\nzero_group_size: null\n").config.zero_group_size, std::nullopt);
}

TEST(Load, StrictDeterminismExcludesWhatDependsOnTheNumberOfRanks) {
  EXPECT_EQ(read("deterministic: strict").config.deterministic, "strict");
  EXPECT_EQ(read("deterministic: strict\nfp8: true\nfp8_recipe: current").config.fp8_recipe, "current");
  EXPECT_EQ(read("deterministic: strict\nfp8: true\nfp8_recipe: block").config.fp8_recipe, "block");
  EXPECT_SAYS(refusal("deterministic: strict\nfp8: true"), "fp8_recipe: current");
  EXPECT_SAYS(refusal("deterministic: strict\nreduce_dtype: bf16"), "narrow wire");
  EXPECT_SAYS(refusal("deterministic: strict\nzero_stage: 1\ngather_dtype: bf16"), "gather_dtype: compute");
  EXPECT_SAYS(refusal("deterministic: strict\nreduce_dtype: fp8"), "set reduce_dtype: fp32");
}

TEST(Load, TheirHarmlessValuesAreAccepted) {
  const Resolved r = read(
      "streaming: false\nquantization_bit: null\nfp16: false\noptim: adamw_torch_fused\nneftune_noise_alpha: "
      "0.0\n"
      "mix_strategy: concat\nfsdp: ''\nrope_scaling: null\nlabel_smoothing_factor: 0\ncreate_new_adapter: "
      "false\n"
      "gradient_checkpointing_kwargs: {use_reentrant: false}\n");
  EXPECT_EQ(r.config.finetuning_type, "full");
}

TEST(Load, KeysWithoutEffectAreSaidOnceAndOnlyWhenTheyAskForSomething) {
  EXPECT_TRUE(read("trust_remote_code: false\nuse_fast_tokenizer: true").notes.empty());
  const Resolved r = read("enable_liger_kernel: true");
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_SAYS(r.notes[0], "enable_liger_kernel");
  EXPECT_SAYS(refusal("enable_liger_kernel: maybe"), "true or false");
}

TEST(Load, OverridesComeInEveryShapeAndOrder) {
  const octet::test::TemporaryFolder folder("config");
  const std::string path = folder / "config.yaml";
  write_file_atomically(path, kBase + "seed: 1\nlearning_rate: 1e-3\n");
  const Resolved r = load({"--seed", "7", "learning_rate=2e-4", path, "--max-steps=5", "--plot_loss",
                           "--bf16", "false", "dataset=[a,b]", "--max_samples", "1", "max_samples=3"},
                          [] {
                            LoadOptions options = quiet();
                            return options;
                          }());
  EXPECT_EQ(r.config.seed, 7);
  EXPECT_EQ(r.config.learning_rate, 2e-4);
  EXPECT_EQ(r.config.max_steps, 5);
  EXPECT_TRUE(r.config.plot_loss);
  EXPECT_FALSE(r.config.bf16);
  EXPECT_EQ(r.config.dataset, (Strings{"a", "b"}));
  EXPECT_EQ(r.config.max_samples, 3);
  EXPECT_EQ(r.origins.at("seed").source, Source::override_);
}

TEST(Load, BrokenCommandLinesAreExplained) {
  EXPECT_SAYS(refusal("", {"--seed"}), "has no value");
  EXPECT_SAYS(refusal("", {"seed"}), "cannot be read");
  EXPECT_SAYS(refusal("", {"=1"}), "no key");
  EXPECT_SAYS(refusal("", {"sed=1"}), "did you mean 'seed'?");
  EXPECT_SAYS(refusal("", {"seed=x"}), "command line");
  EXPECT_SAYS(refusal("", {"dataset=[a"}), "not valid YAML");
  EXPECT_THROW(load({"a.yaml", "b.yaml"}, quiet()), Error);
  EXPECT_THROW(load({"/nowhere/a.yaml"}, quiet()), Error);
}

// Folders of sweeps have "=" in their names.
TEST(Load, APathWithAnEqualsSignIsAPath) {
  const octet::test::TemporaryFolder folder("signs");
  for (const char* name : {"/lr=1e-5/a.yaml", "/seed=3.yml", "/x=1/y=2/a.json"}) {
    const std::string path = folder.path() + name;
    make_folders(path.substr(0, path.rfind('/')));
    const bool json = path.ends_with(".json");
    write_file_atomically(path,
                          json ? R"({"model_name_or_path":"m","dataset":"d","output_dir":"o"})" : kBase);
    EXPECT_EQ(load({path, "seed=9"}, quiet()).config.seed, 9) << path;
  }
  try {
    load({"runs/lr=1e-5/gone.yaml"}, quiet());
    ADD_FAILURE() << "a missing file was accepted";
  } catch (const Error& e) {
    EXPECT_SAYS(std::string(e.what()), "gone.yaml");
    EXPECT_FALSE(says(e.what(), "unknown key")) << e.what();
  }
}

TEST(Load, ARequiredKeyIsAskedForWithAnExample) {
  for (const char* key : {"model_name_or_path", "dataset", "output_dir"}) {
    EXPECT_SAYS(refusal("", {std::string(key) + "=null"}), std::string("'") + key + "' is not given");
  }
  EXPECT_NO_THROW(load_text("", "empty.yaml", {}, quiet(false)));
}

TEST(Load, TheEnvironmentStandsBelowEveryFile) {
  LoadOptions options = quiet();
  options.environment = {{"OCTET_SEED", "5"},
                         {"OCTET_MAX_STEPS", "9"},
                         {"OCTET_SEEED", "1"},
                         {"OCTETRUN_SHARE_GPUS", "1"},
                         {"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
                         {"NVTE_FP8_DPA_BWD", "1"}};
  const Resolved r = load_text(kBase + "max_steps: 3", "t.yaml", {}, options);
  EXPECT_EQ(r.config.seed, 5);
  EXPECT_EQ(r.origins.at("seed").source, Source::environment);
  EXPECT_EQ(r.config.max_steps, 3);
  EXPECT_TRUE(notes(r, "did you mean OCTET_SEED"));
  EXPECT_FALSE(notes(r, "OCTETRUN_SHARE_GPUS")) << "no key, and near none";
  EXPECT_TRUE(notes(r, "CUDA_DEVICE_MAX_CONNECTIONS=1: would make streams of a GPU share connections"));
  EXPECT_TRUE(notes(r, "attention computes in bf16 or fp32"));
  options.environment = {{"OCTET_SEED", "x"}};
  EXPECT_THROW(load_text(kBase, "t.yaml", {}, options), Error);
}

TEST(Load, VariablesOfHabitAreExplainedOnceEach) {
  LoadOptions options = quiet();
  options.environment = {{"WORLD_SIZE", "2"},
                         {"RANK", "0"},
                         {"GPU_NUM", "8"},
                         {"MASTER_ADDR", "a"},
                         {"MASTER_PORT", "1"},
                         {"NCCL_DEBUG", "INFO"},
                         {"NCCL_IB_HCA", "x"},
                         {"NVTE_DEBUG", "1"},
                         {"HSA_ENABLE_SDMA", "0"},
                         {"CUDA_LAUNCH_BLOCKING", "1"},
                         {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"}};
  const Resolved r = load_text(kBase, "t.yaml", {}, options);
  for (const char* said :
       {"environment WORLD_SIZE=2: does nothing", "environment RANK=0: does nothing",
        "environment GPU_NUM=8: does", "environment MASTER_ADDR=a, MASTER_PORT=1: does nothing",
        "environment NCCL_DEBUG=INFO, NCCL_IB_HCA=x: is a variable of NCCL",
        "environment NVTE_DEBUG=1: does nothing: there are statistics",
        "environment HSA_ENABLE_SDMA=0: is a variable of ROCm", "environment CUDA_LAUNCH_BLOCKING=1: harms",
        "environment PYTORCH_CUDA_ALLOC_CONF=expandable"}) {
    EXPECT_EQ(std::ranges::count_if(r.notes, [&](const std::string& note) { return says(note, said); }), 1)
        << said;
  }
  EXPECT_EQ(r.notes.size(), 9u);
  // A row of a single name precedes the row of its family, and a row of a value applies only to that value.
  options.environment = {{"NVTE_FLASH_ATTN", "0"}, {"CUDA_LAUNCH_BLOCKING", "0"}};
  const Resolved own = load_text(kBase, "t.yaml", {}, options);
  EXPECT_EQ(own.notes.size(), 2u);
  EXPECT_TRUE(notes(own, "NVTE_FLASH_ATTN=0: does nothing: attention never forms"));
  EXPECT_FALSE(notes(own, "harms"));
}

TEST(Load, WhoCarriesBytesBetweenGpusIsOneOfFour) {
  EXPECT_EQ(read("").config.gpu_transport, "auto");
  for (const char* value : {"auto", "peer", "nccl", "host"}) {
    EXPECT_EQ(read(std::string("gpu_transport: ") + value).config.gpu_transport, value);
  }
  const std::string message = refusal("gpu_transport: nvlink");
  EXPECT_SAYS(message, "gpu_transport");
  EXPECT_SAYS(message, "nvlink");
  EXPECT_SAYS(message, "auto, peer, nccl");
  EXPECT_SAYS(refusal("gpu_transport: per"), "peer");
  EXPECT_EQ(read("").config.gpu_sums, "auto");
  EXPECT_EQ(read("gpu_sums: nccl\ndeterministic: false").config.gpu_sums, "nccl");
  for (const char* bits : {"true", "strict"}) {
    EXPECT_SAYS(refusal(std::string("gpu_sums: nccl\ndeterministic: ") + bits), "exclude each other");
  }
  EXPECT_SAYS(refusal("gpu_sums: nccl\ndevice: cpu"), "deterministic: false");
  EXPECT_SAYS(refusal("gpu_sums: mpi"), "auto, ordered, nccl");
  // All transports give the same bits, so a run may resume with another transport.
  EXPECT_EQ(resume_hash(read("gpu_transport: host").config), resume_hash(read("").config));
}

TEST(Load, InterpolationsExpand) {
  LoadOptions options = quiet();
  options.environment = {{"HOME_DIR", "/h"}};
  const auto value = [&](const std::string& yaml, const Strings& overrides = {}) {
    return *load_text(kBase + yaml, "t.yaml", overrides, options).config.run_name;
  };
  EXPECT_EQ(value("run_name: ${output_dir}-x-${seed}\nseed: 3"), "o-x-3");
  EXPECT_EQ(value("run_name: ${oc.env:HOME_DIR}/${oc.env:NO_SUCH, d}"), "/h/d");
  EXPECT_EQ(value("run_name: ${seed}\nseed: 3", {"seed=4"}), "4");
  EXPECT_EQ(value("seed: 3", {"run_name=r${seed}"}), "r3");
  EXPECT_EQ(value("run_name: ${seed}-${seed}\nseed: 3"), "3-3") << "twice is no circle";
  for (const char* yaml :
       {"run_name: ${run_name}", "run_name: ${nothing}", "run_name: ${seed", "run_name: ${oc.env:NO_SUCH}",
        "run_name: ${logging_dir}\nlogging_dir: ${run_name}"}) {
    EXPECT_THROW(value(yaml), Error) << yaml;
  }
}

}  // namespace
}  // namespace octet::config::test::load_test
