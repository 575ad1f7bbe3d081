// Files of axolotl as they stand.
#include "config/support.h"
#include "octet/base/strings.h"

namespace octet::config::test {
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
  EXPECT_EQ(r.config.eval_strategy, "epoch");
  EXPECT_TRUE(notes(r, "per_device_train_batch_size 1, num_train_epochs 1")) << "and it is said";
  EXPECT_EQ(axolotl("").config.cutoff_len, 512);
  EXPECT_EQ(axolotl("").config.eval_strategy, "no") << "nothing is held out";
  EXPECT_EQ(axolotl("", {"per_device_train_batch_size=4"}).config.per_device_train_batch_size, 4);
  EXPECT_FALSE(axolotl("bf16: false").config.bf16);
  EXPECT_EQ(axolotl("max_steps: 9").config.num_train_epochs, Config().num_train_epochs);
  // Without its base_model a file is none of axolotl's.
  EXPECT_SAYS(refusal("sequence_len: 9"), "unknown key 'sequence_len'");
  EXPECT_EQ(test::read("").config.per_device_train_batch_size, 8);
  EXPECT_EQ(load_text("", "", {"base_model=m", "sequence_len=77"}, quiet(false)).config.cutoff_len, 77);
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
           {"chat_template: chatml", "template", "chatml"},
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
           {"saves_per_epoch: 4\nnum_epochs: 2", "save_steps", "0.125"},
           {"saves_per_epoch: 0", "save_strategy", "no"},
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

TEST(Axolotl, WhatIsNotBuiltIsRefusedByItsOwnName) {
  for (const auto& [yaml, part] : std::vector<std::pair<std::string, std::string>>{
           {"adapter: ia3", "lora or qlora"},
           {"load_in_4bit: true", "adapter: qlora"},
           {"load_in_8bit: true", "'load_in_8bit' is not supported"},
           {"rl: dpo", "only supervised training is built"},
           {"sequence_length: 9", "did you mean 'sequence_len'?"},
           {"micro_batch_sise: 9", "did you mean 'micro_batch_size'?"},
           {"datasets: [{pth: a}]", "did you mean 'path'?"},
           {"datasets: [{path: a, type: {field_instruction: q}}]", "recognised by their fields"},
           {"datasets: [{path: a, split: test}]", "datasets.split"},
           {"datasets: [{path: a, roles_to_train: [human]}]", "train_on_inputs"},
           {"datasets: [{path: a, train_on_eos: last}]", "datasets.train_on_eos"},
           {"datasets: [{path: a, message_property_mappings: {role: speaker}}]", "dataset_info.json"},
           {"special_tokens: {eos_token: x}", "pad_token alone"},
           {"tokens: [a]", "'tokens' is not supported"},
           {"plugins: [my.plugin]", "no code of others is run"},
           {"fsdp: [full_shard, offload]", "parameters stay on the device"},
           {"fsdp_config: {fsdp_offload_params: true}", "fsdp_config.fsdp_offload_params"},
           {"context_parallel_size: 2", "not split over ranks"},
           {"optimizer: muon_x", "optimizer"},
           {"lr_scheduler: rex", "lr_scheduler"},
           {"lr_scheduler: linear\ncosine_min_lr_ratio: 0.1", "is for lr_scheduler: cosine"},
           {"excess_length_strategy: keep", "drop, truncate or raise"},
           {"evals_per_epoch: -2\nval_set_size: 1", "at least 0"},
           {"batch_size: 8", "global_batch_size"},
           {"early_stopping_patience: 3", "max_steps"},
           {"unfrozen_parameters: [a]", "freeze_trainable_layers"},
           {"fp16: true", "fp16"},
           {"micro_batch_size: 2\nper_device_train_batch_size: 3", "given twice"},
       }) {
    SCOPED_TRACE(yaml);
    EXPECT_SAYS(axolotl_refusal(yaml), part);
  }
}

// What has no meaning says so, in words of its own, and a key that is listed without a value says nothing.
TEST(Axolotl, WhatChangesNothingIsSaid) {
  for (const ForeignKey& key : axolotl_dialect_keys()) {
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
  EXPECT_TRUE(notes(axolotl("datasets: [{path: a, type: alpaca}]"), "asks for a prompt of axolotl's"));
  EXPECT_TRUE(notes(axolotl("excess_length_strategy: drop"), "axolotl leaves them out"));
  EXPECT_TRUE(notes(axolotl("gradient_checkpointing: unsloth"), "computes activations again"));
}

}  // namespace
}  // namespace octet::config::test
