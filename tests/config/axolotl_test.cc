// Original configuration files of axolotl.
#include <array>

#include "config/support.h"
#include "octet/base/strings.h"
#include "support/program.h"

namespace octet::config::test::axolotl_test {
namespace {

Resolved axolotl(const std::string& yaml, const Strings& overrides = {}) {
  return load_text("base_model: m\n" + yaml, "axolotl.yaml", overrides, quiet(false));
}

std::string axolotl_refusal(const std::string& yaml) {
  try {
    axolotl(yaml);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << yaml;
  return "";
}

TEST(Axolotl, ItsDefaultsHoldWhereNothingIsSaid) {
  const Resolved r = axolotl("val_set_size: 0.1\nsequence_len: 64");
  EXPECT_EQ(r.config.per_device_train_batch_size, 1);
  EXPECT_EQ(r.config.num_train_epochs, 1);
  EXPECT_EQ(r.config.lr_scheduler_type, "cosine");
  EXPECT_TRUE(r.config.bf16);
  EXPECT_EQ(r.config.cutoff_len, 64);
  EXPECT_EQ(r.config.save_strategy, "epoch");
  EXPECT_EQ(r.config.save_total_limit, 4);
  EXPECT_EQ(r.config.output_dir, "./model-out");
  EXPECT_TRUE(notes(r, "per_device_train_batch_size 1, num_train_epochs 1")) << "and it is said";
  EXPECT_TRUE(notes(r, "save_total_limit 4")) << "and it is said";
  EXPECT_EQ(axolotl("").config.cutoff_len, 512);
  EXPECT_EQ(axolotl("").config.eval_strategy, "no") << "nothing is held out";
  EXPECT_EQ(axolotl("", {"per_device_train_batch_size=4"}).config.per_device_train_batch_size, 4);
  EXPECT_FALSE(axolotl("bf16: false").config.bf16);
  EXPECT_EQ(axolotl("max_steps: 9").config.num_train_epochs, Config().num_train_epochs);
  // A key without a value has no effect; null on the command line selects our default.
  EXPECT_EQ(axolotl("save_total_limit:\noutput_dir: o").config.save_total_limit, 4);
  EXPECT_EQ(axolotl("output_dir: o").config.output_dir, "o");
  const Resolved all = axolotl("", {"save_total_limit=null"});
  EXPECT_FALSE(all.config.save_total_limit);
  EXPECT_FALSE(notes(all, "save_total_limit"));
  // Without base_model a file is not axolotl's.
  EXPECT_SAYS(refusal("sequence_len: 9"), "unknown key 'sequence_len'");
  EXPECT_EQ(test::read("").config.per_device_train_batch_size, 8);
  EXPECT_EQ(load_text("", "", {"base_model=m", "sequence_len=77"}, quiet(false)).config.cutoff_len, 77);
}

// The warm-up has 3 % of the steps, at most 100 and never one step. There is a log line for each 0.5 %, at
// least every ten steps.
TEST(Axolotl, ItsWarmUpAndItsLogFollowTheSteps) {
  for (const auto& [steps, warm, log] : std::vector<std::array<int, 3>>{{9, 0, 1},
                                                                        {33, 0, 1},
                                                                        {34, 2, 1},
                                                                        {66, 2, 1},
                                                                        {67, 2, 1},
                                                                        {100, 3, 1},
                                                                        {600, 18, 3},
                                                                        {5000, 100, 10}}) {
    const Config c = axolotl("max_steps: " + std::to_string(steps)).config;
    EXPECT_EQ(c.warmup_steps, warm) << steps;
    EXPECT_EQ(c.warmup_ratio, 0) << steps;
    EXPECT_EQ(c.logging_steps, log) << steps;
  }
  const Resolved open = axolotl("num_epochs: 2");
  EXPECT_EQ(open.config.warmup_ratio, 0.03);
  EXPECT_EQ(open.config.logging_steps, 0.005);
  EXPECT_TRUE(notes(open, "ends after 100 steps"));
  for (const char* own : {"warmup_steps: 0", "warmup_steps: 7", "warmup_ratio: 0.5"}) {
    const Resolved r = axolotl(own);
    EXPECT_NE(r.config.warmup_ratio, 0.03) << own;
    EXPECT_FALSE(notes(r, "ends after 100 steps")) << own;
  }
  EXPECT_EQ(axolotl("warmup_ratio: 0.5\nmax_steps: 100").config.warmup_steps, 0);
  EXPECT_EQ(axolotl("logging_steps: 7").config.logging_steps, 7);
}

// Rows may be held out without being evaluated.
TEST(Axolotl, ItEvaluatesOnlyWhereItIsTold) {
  const Resolved untold = axolotl("val_set_size: 0.1");
  EXPECT_EQ(untold.config.eval_strategy, "no");
  EXPECT_TRUE(notes(untold, "no key says when"));
  EXPECT_EQ(axolotl("val_set_size: 0.1\nevals_per_epoch: 0").config.eval_strategy, "no");
  const Resolved told = axolotl("val_set_size: 0.1\nevals_per_epoch: 1");
  EXPECT_EQ(told.config.eval_strategy, "epoch");
  EXPECT_FALSE(notes(told, "no key says when"));
  EXPECT_TRUE(notes(told, "before the first step"));
  EXPECT_EQ(axolotl("val_set_size: 0.1\neval_strategy: epoch").config.eval_strategy, "epoch");
  EXPECT_FALSE(notes(axolotl("val_set_size: 0.1\neval_strategy: no"), "before the first step"));
}

TEST(Axolotl, EachKeyHasItsMeaning) {
  struct Row {
    std::string yaml, key, value;
  };
  for (const Row& row : std::vector<Row>{
           {"base_model_config:", "model_name_or_path", "m"},
           {"dataset_prepared_path: p", "tokenized_path", "p"},
           {"dataset_processes: 3", "preprocessing_num_workers", "3"},
           {"dataset_num_proc: 3", "preprocessing_num_workers", "3"},
           {"val_set_size: 7", "val_size", "7"},
           {"train_on_inputs: true", "train_on_prompt", "true"},
           {"chat_template: qwen_25", "template", "qwen"},
           {"chat_template: qwen3_5", "template", "qwen3"},
           {"chat_template: chatml", "template", "chatml"},
           {"rl: kto", "stage", "kto"},
           {"rl: dpo", "stage", "dpo"},
           {"reward_model: true\nnum_labels: 1\nmodel_type: AutoModelForSequenceClassification", "stage",
            "rm"},
           {"reward_model: false", "stage", "sft"},
           {"rl: orpo\norpo_alpha: 0.2", "pref_loss", "orpo"},
           {"rl: orpo\norpo_alpha: 0.2", "pref_beta", "0.2"},
           {"rl: ipo\nrl_beta: 0.3", "pref_beta", "0.3"},
           {"rl: kto\nkto_desirable_weight: 0.2", "kto_chosen_weight", "0.2"},
           {"rl: kto\nkto_undesirable_weight: 0.3", "kto_rejected_weight", "0.3"},
           {"chat_template: phi_35", "template", "phi"},
           {"chat_template: mistral_v2v3", "template", "mistral"},
           {"chat_template: mistral_v3_tekken", "template", "ministral"},
           {"chat_template: deepseek_v3", "template", "deepseek3"},
           {"chat_template: tokenizer_default", "template", "null"},
           {"chat_template: jinja\nchat_template_jinja: t.jinja", "template", "t.jinja"},
           {"default_system_message: Be brief", "default_system", "Be brief"},
           {"excess_length_strategy: raise", "truncation", "error"},
           {"excess_length_strategy: truncate", "truncation", "cut"},
           {"sample_packing: true", "packing", "true"},
           {"datasets: [{path: a.jsonl}, {path: b.jsonl}]", "dataset", "[a.jsonl, b.jsonl]"},
           {"datasets: [{path: folder, data_files: [a.jsonl]}]", "dataset", "[folder/a.jsonl]"},
           {"datasets: [{path: json, data_files: x/a.jsonl, ds_type: json}]", "dataset", "[x/a.jsonl]"},
           {"datasets: [{path: a, type: completion}]", "stage", "pt"},
           {"datasets: [{path: a, type: completion}]", "packing", "false"},
           {"datasets: [{path: a, type: completion}, {path: b, type: chat_template}]", "stage", "sft"},
           {"datasets: [{path: a, chat_template: chatml}]", "template", "chatml"},
           {"datasets: [{path: a, field_messages: c}]", "messages_column", "c"},
           {"test_datasets: [{path: e}]", "eval_dataset", "[e]"},
           {"datasets: [{path: a, split: train_sft}, {path: b, split: train_sft}]", "dataset_train_split",
            "train_sft"},
           {"datasets: [{path: a, split: train}, {path: b}]", "dataset_train_split", "null"},
           {"test_datasets: [{path: e, split: test_sft}]", "dataset_test_split", "test_sft"},
           {"test_datasets: [{path: e}]\neval_steps: 5", "eval_strategy", "steps"},
           {"micro_batch_size: 3", "per_device_train_batch_size", "3"},
           {"eval_batch_size: 3", "per_device_eval_batch_size", "3"},
           {"num_epochs: 7", "num_train_epochs", "7.0"},
           {"optimizer: adamw_bnb_8bit", "optim_dtype", "int8"},
           {"lr_scheduler: linear", "lr_scheduler_type", "linear"},
           {"cosine_min_lr_ratio: 0.1", "lr_scheduler_type", "cosine_with_min_lr"},
           {"cosine_min_lr_ratio: 0.1", "lr_scheduler_kwargs", "{min_lr_rate: 0.1}"},
           {"bf16: full", "pure_bf16", "true"},
           {"bfloat16: true", "pure_bf16", "true"},
           {"gradient_checkpointing: offload", "gradient_checkpointing", "true"},
           {"fsdp: [full_shard, auto_wrap]", "zero_stage", "3"},
           {"fsdp: shard_grad_op", "zero_stage", "2"},
           {"fsdp_version: 2\nfsdp_config: {offload_params: false}", "zero_stage", "3"},
           {"fsdp_config: {reshard_after_forward: false}", "zero_stage", "2"},
           {"fsdp: []\nfsdp_config: {}", "zero_stage", "0"},
           {"fsdp: [full_shard]", "zero_group_size", "null"},
           {"fsdp: [hybrid_shard, auto_wrap]", "zero_stage", "3"},
           {"fsdp: [hybrid_shard, auto_wrap]", "zero_group_size", "node"},
           {"fsdp: [hybrid_shard_zero2]", "zero_stage", "2"},
           {"fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}", "zero_stage", "3"},
           {"fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}", "zero_group_size", "node"},
           {"fsdp_config: {sharding_strategy: 4}", "zero_group_size", "node"},
           {"fsdp_config: {fsdp_sharding_strategy: _HYBRID_SHARD_ZERO2}", "zero_stage", "2"},
           {"fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}", "zero_stage", "2"},
           {"fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}", "zero_group_size", "null"},
           {"fsdp_config: {fsdp_sharding_strategy: NO_SHARD}", "zero_stage", "0"},
           {"fsdp_version: 2\nfsdp_config: {offload_params: false}\ndp_shard_size: 4\ndp_replicate_size: 2",
            "zero_group_size", "4"},
           {"fsdp: [hybrid_shard]\ndp_shard_size: 4", "zero_group_size", "4"},
           {"dp_shard_size: 4", "zero_group_size", "null"},
           {"saves_per_epoch: 4\nnum_epochs: 2", "save_steps", "0.125"},
           {"saves_per_epoch: 0", "save_strategy", "epoch"},
           {"saves_per_epoch: 2\nmax_steps: 50", "save_steps", "0.5"},
           {"save_strategy: no", "save_strategy", "no"},
           {"reinit_weights: true", "train_from_scratch", "true"},
           {"evaluation_strategy: epoch\nval_set_size: 1", "eval_strategy", "epoch"},
           {"datasets: [{path: a, chat_template: jinja, chat_template_jinja: t.jinja}]", "template",
            "t.jinja"},
           {"activation_offloading: true\ngradient_checkpointing: true", "gradient_checkpointing", "true"},
           {"adapter: lora\nlora_target_modules: [q_proj]\nlora_target_linear: true", "lora_target", "[all]"},
           {"adapter: lora\nlora_target_modules: all-linear", "lora_target", "[all]"},
           {"fsdp: [full_shard]\nfsdp_config: {fsdp_reshard_after_forward: false}", "zero_stage", "2"},
           {"fsdp_config: {fsdp_activation_checkpointing: true}", "gradient_checkpointing", "true"},
           {"fsdp_config: {activation_checkpointing: true}\ngradient_checkpointing: false",
            "gradient_checkpointing", "true"},
           {"fsdp_config: {activation_checkpointing: false}", "gradient_checkpointing", "null"},
           {"saves_per_epoch: 1\nnum_epochs: 3", "save_strategy", "epoch"},
           {"save_steps: 5", "save_strategy", "steps"},
           {"val_set_size: 1\nevals_per_epoch: 2\nnum_epochs: 2", "eval_steps", "0.25"},
           {"auto_resume_from_checkpoints: true", "resume_from_checkpoint", "auto"},
           {"use_tensorboard: true", "report_to", "[tensorboard]"},
           {"wandb_name: r", "run_name", "r"},
           {"adapter: lora\nlora_r: 3", "lora_rank", "3"},
           {"adapter: lora\nlora_target_modules: [q_proj]", "lora_target", "[q_proj]"},
           {"adapter: lora\nlora_target_linear: true", "lora_target", "[all]"},
           {"adapter: lora\nlora_modules_to_save: [lm_head]", "additional_target", "[lm_head]"},
           {"adapter: lora\npeft_use_rslora: true", "use_rslora", "true"},
           {"adapter: lora\npeft_use_dora: true", "use_dora", "true"},
           {"adapter: lora\nlora_model_dir: a", "adapter_name_or_path", "a"},
           {"adapter: lora\nload_in_4bit: true", "quantization_bit", "4"},
           {"adapter: qlora", "quantization_bit", "4"},
           {"lora_r: 8\nlora_dropout: 0.1", "finetuning_type", "full"},
           {"fp16: auto\ntf32: auto", "bf16", "true"},
       }) {
    SCOPED_TRACE(row.yaml);
    std::string text = value_text(*find_field(row.key), axolotl(row.yaml).config);
    std::erase(text, '"');
    EXPECT_EQ(std::string(text),
              row.value.ends_with(".0") ? row.value.substr(0, row.value.size() - 2) : row.value);
  }
}

// Many examples of axolotl name tokens that the tokenizer already has.
TEST(Axolotl, SpecialTokensMayBeTheTokenizersOwn) {
  const ::octet::test::TemporaryFolder folder("special_tokens");
  const auto loads = [&](const std::string& tokens) {
    try {
      load_text("base_model: " + folder.path() + "\nspecial_tokens: " + tokens, "axolotl.yaml", {},
                quiet(false));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find("special_tokens"), std::string::npos) << error.what();
      return false;
    }
    return true;
  };
  ::octet::test::spill(folder / "tokenizer_config.json",
                       R"({"eos_token": "</s>", "bos_token": {"content": "<s>"}})");
  EXPECT_TRUE(loads("{eos_token: \"</s>\", bos_token: <s>, unk_token: null, pad_token: x}"));
  EXPECT_FALSE(loads("{eos_token: <s>}"));
  EXPECT_FALSE(loads("{unk_token: <unk>}")) << "the tokenizer has none";
  EXPECT_TRUE(loads("{additional_special_tokens: []}"));
  EXPECT_FALSE(loads("{additional_special_tokens: [</s>]}"));
  // Without added_tokens_decoder the map decides.
  ::octet::test::spill(folder / "special_tokens_map.json", R"({"eos_token": "<end>", "unk_token": "<unk>"})");
  EXPECT_TRUE(loads("{eos_token: <end>, unk_token: <unk>}"));
  EXPECT_FALSE(loads("{eos_token: \"</s>\"}"));
  ::octet::test::spill(folder / "tokenizer_config.json",
                       R"({"eos_token": "</s>", "added_tokens_decoder": {}})");
  EXPECT_TRUE(loads("{eos_token: \"</s>\"}"));
}

TEST(Axolotl, WhatIsNotBuiltIsRefusedByItsOwnName) {
  for (const auto& [yaml, part] : std::vector<std::pair<std::string, std::string>>{
           {"adapter: ia3", "lora or qlora"},
           {"load_in_4bit: true", "adapter: qlora"},
           {"load_in_8bit: true", "'load_in_8bit' is not supported"},
           {"rl: grpo", "other methods are not built"},
           {"reward_model: true\nnum_labels: 2", "a reward model has one score"},
           {"sequence_length: 9", "did you mean 'sequence_len'?"},
           {"micro_batch_sise: 9", "did you mean 'micro_batch_size'?"},
           {"datasets: [{pth: a}]", "did you mean 'path'?"},
           {"datasets: [{path: a, type: {field_instruction: q}}]", "recognised by their fields"},
           {"datasets: [{path: a, split: 'train[:50%]'}]", "max_samples takes the first rows"},
           {"datasets: [{path: a, split: 'train[10:]'}]", "val_set_size holds rows out"},
           {"datasets: [{path: a, split: train+test}]", "name only the split"},
           {"datasets: [{path: a, split: x}, {path: b}]", "one split for all sets"},
           {"test_datasets: [{path: a, split: x}, {path: b, split: y}]", "dataset_info.json"},
           {"datasets: [{path: a, name: en}]", "as its \"subset\""},
           {"datasets: [{path: a, roles_to_train: [human]}]", "train_on_inputs"},
           {"datasets: [{path: a, train_on_eos: last}]", "datasets.train_on_eos"},
           {"datasets: [{path: a, message_property_mappings: {role: speaker}}]", "dataset_info.json"},
           {"special_tokens: {eos_token: x}", "only pad_token"},
           {"tokens: [a]", "'tokens' is not supported"},
           {"plugins: [my.plugin]", "no foreign code is run"},
           {"fsdp: [full_shard, offload]", "parameters stay on the device"},
           {"fsdp_config: {fsdp_offload_params: true}", "fsdp_config.fsdp_offload_params"},
           {"fsdp_config: {cpu_offload: true}", "fsdp_config.cpu_offload"},
           {"fsdp_config: sharded", "a map"},
           {"fsdp_config: {fsdp_sharding_strategy: zigzag}", "fsdp_config.fsdp_sharding_strategy"},
           {"chat_template: alpaca", "the model's own template"},
           {"chat_template: gemma4", "the model's own template"},
           {"chat_template: phi_4", "the model's own template"},
           {"chat_template: mistral_v1", "mistral_v2v3"},
           {"chat_template: phi_3", "chatml, llama3"},
           {"datasets: [{path: a, chat_template: phi_3}]", "chatml, llama3"},
           {"adapter: lora\nlora_target_linear: true\nlora_target_modules: [lm_head]",
            "lora_modules_to_save"},
           {"datasets: [{path: a, train_on_eot: all}]", "datasets.train_on_eot"},
           {"datasets: [{path: a, shards: 4}]", "max_samples"},
           {"datasets: [{path: a, field_thinking: thoughts}]", "</think>"},
           {"datasets: [{path: a, drop_system_message: true}]", "remove system messages"},
           {"datasets: [{path: a, message_field_training: train}]", "answers are trained"},
           {"datasets: [{path: a, revision: v2}]", "fetch that revision"},
           {"model_config: {hidden_size: 8}", "config.json"},
           {"peft_init_lora_weights: gaussian", "one factor random"},
           {"curriculum_sampling: true", "disable_shuffling"},
           {"dataset_exact_deduplication: true", "remove them beforehand"},
           {"lr_groups: [{name: a, modules: [b], lr: 1}]", "one learning rate"},
           {"trl: {beta: 0.1}", "use rl: dpo, ipo, orpo, simpo or kto for preferences"},
           {"context_parallel_size: 2", "not split over ranks"},
           {"optimizer: muon_x", "optimizer"},
           {"lr_scheduler: rex", "lr_scheduler"},
           {"lr_scheduler: linear\ncosine_min_lr_ratio: 0.1", "is for lr_scheduler: cosine"},
           {"excess_length_strategy: keep", "drop, truncate or raise"},
           {"evals_per_epoch: -2\nval_set_size: 1", "at least 0"},
           {"batch_size: 8", "global_batch_size"},
           {"unfrozen_parameters: [a]", "freeze_trainable_layers"},
           {"fp16: true", "fp16"},
           {"micro_batch_size: 2\nper_device_train_batch_size: 3", "given twice"},
       }) {
    SCOPED_TRACE(yaml);
    EXPECT_SAYS(axolotl_refusal(yaml), part);
  }
}

TEST(Axolotl, WhatAsksForNothingIsAccepted) {
  for (const char* yaml : {"datasets: [{path: a, shards: null, split_thinking: false, drop_system_message: "
                           "false, temperature:}]",
                           "peft_init_lora_weights: true", "model_config: {}", "curriculum_sampling: false",
                           "rl:", "num_labels: 0", "fsdp: false", "fsdp_config: {offload_params: false}"}) {
    EXPECT_NO_THROW(axolotl(yaml)) << yaml;
  }
  EXPECT_EQ(axolotl("fsdp: false").config.zero_stage, 0);
}

// Each key without effect has a note with its reason. A key without a value has no note.
TEST(Axolotl, WhatChangesNothingIsSaid) {
  for (const ForeignKey& key : dialect_keys("axolotl")) {
    EXPECT_NE(key.becomes.empty(), key.reason.empty()) << key.path;
    if (!key.becomes.empty()) {
      for (const auto& ours : split(key.becomes, ' ')) EXPECT_TRUE(find_field(ours) != nullptr) << key.path;
      continue;
    }
    EXPECT_GE(split(key.reason, ' ').size(), 3u) << key.path;
    const Resolved nothing = axolotl(key.path + ":");
    EXPECT_FALSE(notes(nothing, "'" + key.path + "'")) << key.path;
    std::string said;
    try {
      for (const std::string& note : axolotl(key.path + ": word").notes) said += note;
    } catch (const Error& e) {
      said = e.what();
    }
    EXPECT_SAYS(said, key.path);
  }
  EXPECT_TRUE(notes(axolotl("datasets: [{path: a, type: alpaca}]"), "names a prompt of axolotl"));
  EXPECT_TRUE(notes(axolotl("excess_length_strategy: drop"), "axolotl leaves them out"));
  EXPECT_TRUE(notes(axolotl("gradient_checkpointing: unsloth"), "computes activations again"));
  EXPECT_TRUE(notes(axolotl("chat_template: mistral_v2v3"), "before the first question"));
  EXPECT_FALSE(notes(axolotl("chat_template: chatml"), "before the first question"));
}

}  // namespace
}  // namespace octet::config::test::axolotl_test
