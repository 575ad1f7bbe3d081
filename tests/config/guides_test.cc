// The original configurations of guides (tests/guides), and the translation of each of their keys.
#include <filesystem>
#include <map>

#include "config/support.h"

namespace octet::config::test::guides_test {
namespace {

using Meanings = std::map<std::string, std::string>;

/// A guide's file (or none), the arguments of its command line, and all of our keys that they set.
struct Guide {
  const char* name;
  Strings arguments;
  Meanings means;
  Strings notes;  ///< parts of the notes about keys without effect
};

const std::string kGuides = std::string(OCTET_SOURCE_DIR) + "/tests/guides/";

const Meanings kSftPlay{{"model_name_or_path", "Qwen/Qwen2.5-3B"},
                        {"cutoff_len", "512"},
                        {"finetuning_type", "full"},
                        {"lora_rank", "32"},
                        {"lora_alpha", "64"},
                        {"lora_dropout", "0.05"},
                        {"lora_target", "[all]"},
                        {"num_train_epochs", "3"},
                        {"learning_rate", "2.0e-04"},
                        {"warmup_ratio", "0.06"},
                        {"weight_decay", "0.01"},
                        {"lr_scheduler_type", "cosine"},
                        {"optim", "adamw_torch"},
                        {"auto_find_batch_size", "true"},
                        {"gradient_accumulation_steps", "auto"},
                        {"template", "chat_templates/default.jinja"},
                        {"run_name", "play"},
                        {"gradient_checkpointing", "true"},
                        {"bf16", "true"},
                        {"logging_steps", "10"},
                        {"eval_strategy", "steps"},
                        {"eval_steps", "200"},
                        {"save_strategy", "steps"},
                        {"save_steps", "200"},
                        {"save_total_limit", "3"},
                        {"load_best_model_at_end", "true"},
                        {"resume_from_checkpoint", "auto"},
                        {"output_dir", "outputs"},
                        {"dataset", "[data/processed/train.jsonl]"},
                        {"eval_dataset", "[data/processed/val.jsonl]"},
                        {"report_to", "[tensorboard]"},
                        {"seed", "42"},
                        {"stage", "sft"}};

Meanings with(Meanings base, const Meanings& more, const Strings& without = {}) {
  for (const auto& [key, value] : more) base[key] = value;
  for (const auto& key : without) base.erase(key);
  return base;
}

const Meanings kLlama{{"stage", "sft"},
                      {"do_train", "true"},
                      {"finetuning_type", "full"},
                      {"dataset", "[ultrachat_200k]"},
                      {"template", "llama3"},
                      {"cutoff_len", "4096"},
                      {"overwrite_cache", "true"},
                      {"logging_steps", "10"},
                      {"overwrite_output_dir", "true"},
                      {"lr_scheduler_type", "cosine"},
                      {"fp8", "true"},
                      {"fp8_backend", "te"},
                      {"bf16", "true"},
                      {"report_to", "[none]"}};

const Meanings kAxolotl{{"model_name_or_path", "NousResearch/Meta-Llama-3.1-8B"},
                        {"template", "llama3"},
                        {"dataset", "[data/chat.jsonl]"},
                        {"messages_column", "messages"},
                        {"tokenized_path", "last_run_prepared"},
                        {"val_size", "0.05"},
                        {"output_dir", "./outputs/out"},
                        {"cutoff_len", "8192"},
                        {"packing", "true"},
                        {"gradient_accumulation_steps", "8"},
                        {"per_device_train_batch_size", "1"},
                        {"num_train_epochs", "4"},
                        {"optim", "paged_adamw_8bit"},
                        {"optim_dtype", "int8"},
                        {"lr_scheduler_type", "cosine_with_min_lr"},
                        {"lr_scheduler_kwargs", "{min_lr_rate: 0.1}"},
                        {"learning_rate", "2.0e-05"},
                        {"train_on_prompt", "false"},
                        {"bf16", "true"},
                        {"gradient_checkpointing", "true"},
                        {"logging_steps", "1"},
                        {"warmup_steps", "100"},
                        {"eval_strategy", "steps"},
                        {"eval_steps", "0.125"},
                        {"save_strategy", "epoch"},
                        {"save_total_limit", "4"},
                        {"weight_decay", "0"},
                        {"zero_stage", "3"}};

const Meanings kVerl{{"model_name_or_path", "/home/me/models/Qwen3-4B"},
                     {"dataset", "[/home/me/data/train.parquet]"},
                     {"eval_dataset", "[/home/me/data/test.parquet]"},
                     {"global_batch_size", "128"},
                     {"per_device_train_batch_size", "4"},
                     {"cutoff_len", "1024"},
                     {"truncation", "error"},
                     {"prompt_column", "question"},
                     {"response_column", "answer"},
                     {"bf16", "true"},
                     {"pure_bf16", "false"},
                     {"zero_stage", "3"},
                     {"optim_state_cpu_offload", "false"},
                     {"gradient_checkpointing", "true"},
                     {"learning_rate", "1.0e-05"},
                     {"adam_beta1", "0.9"},
                     {"adam_beta2", "0.95"},
                     {"weight_decay", "0.01"},
                     {"warmup_ratio", "0.1"},
                     {"max_grad_norm", "1"},
                     {"lr_scheduler_type", "cosine"},
                     {"output_dir", "checkpoints/prompt_distillation/lang"},
                     {"run_name", "lang"},
                     {"num_train_epochs", "4"},
                     {"report_to", "[none]"},
                     {"seed", "1"},
                     {"save_strategy", "no"},
                     {"eval_strategy", "no"},
                     {"resume_from_checkpoint", "auto"}};

const std::vector<Guide>& guides() {
  static const std::vector<Guide> all{
      {"the first, on one GPU",
       {kGuides + "llama3_fp8_single_gpu_sft.yaml"},
       with(kLlama, {{"model_name_or_path", "/checkpoints/Meta-Llama-3.1-8B"},
                     {"preprocessing_num_workers", "32"},
                     {"output_dir", "/checkpoints/llama3_fp8_sft"},
                     {"per_device_train_batch_size", "6"},
                     {"gradient_accumulation_steps", "4"},
                     {"gradient_checkpointing", "true"},
                     {"learning_rate", "2.0e-04"},
                     {"num_train_epochs", "2"},
                     {"warmup_steps", "100"},
                     {"optim_state_cpu_offload", "true"}}),
       {"flash_attn", "tf32", "dataloader_num_workers", "fp8_backend: te", "optim_state_cpu_offload"}},
      {"the same with its DeepSpeed file",
       {kGuides + "llama3_fp8_single_gpu_sft.yaml", "deepspeed=" + kGuides + "ds_z0_single_gpu_config.json"},
       with(kLlama, {{"model_name_or_path", "/checkpoints/Meta-Llama-3.1-8B"},
                     {"preprocessing_num_workers", "32"},
                     {"output_dir", "/checkpoints/llama3_fp8_sft"},
                     {"per_device_train_batch_size", "6"},
                     {"gradient_accumulation_steps", "4"},
                     {"gradient_checkpointing", "true"},
                     {"learning_rate", "2.0e-04"},
                     {"num_train_epochs", "2"},
                     {"warmup_steps", "100"},
                     {"optim_state_cpu_offload", "true"},
                     {"deepspeed", "\"" + kGuides + "ds_z0_single_gpu_config.json\""},
                     {"zero_stage", "0"},
                     {"overlap_comm", "false"}}),
       {}},
      {"the second, with DeepSpeed",
       {kGuides + "llama3_fp8_deepspeed_sft.yaml", "deepspeed=" + kGuides + "ds_z1_fp8_config.json"},
       with(kLlama, {{"model_name_or_path", "meta-llama/Meta-Llama-3.1-8B"},
                     {"preprocessing_num_workers", "16"},
                     {"max_samples", "1000"},
                     {"output_dir", "checkpoints/llama3_fp8"},
                     {"save_steps", "500"},
                     {"plot_loss", "true"},
                     {"per_device_train_batch_size", "4"},
                     {"per_device_eval_batch_size", "1"},
                     {"gradient_accumulation_steps", "8"},
                     {"learning_rate", "1.0e-05"},
                     {"num_train_epochs", "1"},
                     {"warmup_ratio", "0.1"},
                     {"ddp_timeout", "180000000"},
                     {"deepspeed", "\"" + kGuides + "ds_z1_fp8_config.json\""},
                     {"zero_stage", "1"},
                     {"overlap_comm", "false"}}),
       {"allgather_bucket_size", "reduce_bucket_size"}},
      {"the third, on synthetic data: a command line alone",
       {"model_name_or_path=m", "dataset=d", "output_dir=o", "global_batch_size=64",
        "per_device_train_batch_size=1", "cutoff_len=2048", "learning_rate=3e-4", "weight_decay=0.1",
        "adam_beta1=0.9", "adam_beta2=0.95", "warmup_steps=1", "max_steps=10", "lr_scheduler_type=cosine"},
       {{"model_name_or_path", "m"},
        {"dataset", "[d]"},
        {"output_dir", "o"},
        {"global_batch_size", "64"},
        {"per_device_train_batch_size", "1"},
        {"cutoff_len", "2048"},
        {"learning_rate", "3.0e-04"},
        {"weight_decay", "0.1"},
        {"adam_beta1", "0.9"},
        {"adam_beta2", "0.95"},
        {"warmup_steps", "1"},
        {"max_steps", "10"},
        {"lr_scheduler_type", "cosine"}},
       {}},
      {"SFT-Play's base",
       {kGuides + "sft_play_base.yaml"},
       kSftPlay,
       {"data.test_path", "tuning.backend", "model.type", "trust_remote_code", "'tuning.lora.r'",
        "steps of about 32 samples over all ranks", "'data.split.train_ratio' is not read",
        "rougeL' is not computed while training"}},
      {"SFT-Play on several GPUs, which includes it",
       {kGuides + "sft_play_run_distributed.yaml"},
       with(kSftPlay,
            {{"cutoff_len", "1024"}, {"num_train_epochs", "1"}, {"output_dir", "outputs/distributed"}}),
       {}},
      {"SFT-Play with DeepSpeed",
       {kGuides + "sft_play_run_distributed.yaml", "deepspeed=" + kGuides + "deepspeed_z2.json"},
       with(kSftPlay, {{"cutoff_len", "1024"},
                       {"num_train_epochs", "1"},
                       {"output_dir", "outputs/distributed"},
                       {"deepspeed", "\"" + kGuides + "deepspeed_z2.json\""},
                       {"zero_stage", "2"},
                       {"overlap_comm", "true"}}),
       {"steps_per_print"}},
      {"SFT-Play with a DeepSpeed file with comments and offloading",
       {kGuides + "sft_play_base.yaml", "deepspeed=" + kGuides + "deepspeed_custom.json"},
       with(kSftPlay, {{"deepspeed", "\"" + kGuides + "deepspeed_custom.json\""},
                       {"zero_stage", "3"},
                       {"optim_state_cpu_offload", "true"}}),
       {"'zero_optimization.cpu_offload' ("}},
      {"SFT-Play's continued pre-training, mixed with conversations",
       {kGuides + "sft_play_run_dapt.yaml"},
       with(kSftPlay,
            {{"cutoff_len", "256"},
             {"packing", "true"},
             {"dataset", "[data/processed/cpt.jsonl, data/processed/chat.jsonl]"},
             {"interleave_probs", "[\"0.7\", \"0.3\"]"},
             {"pack_factor", "4"},
             {"mix_strategy", "interleave_under"},
             {"per_device_train_batch_size", "1"},
             {"gradient_accumulation_steps", "8"},
             {"num_train_epochs", "1"},
             {"output_dir", "outputs/dapt"}},
            {"auto_find_batch_size"}),
       {"'data.train_path' is overridden by 'datasets'", "'model.max_seq_len' is overridden by 'block_size'",
        "'mode' is overridden by 'task_mode'", "blocks do not overlap",
        "'train.batch_size' is overridden by 'train.per_device_train_batch_size'",
        "'train.overwrite_output_dir' is overridden"}},
      {"the same with a micro-batch that is found, and its number of micro-batches",
       {kGuides + "sft_play_run_dapt.yaml", "train.per_device_train_batch_size=null"},
       with(kSftPlay, {{"cutoff_len", "256"},
                       {"packing", "true"},
                       {"dataset", "[data/processed/cpt.jsonl, data/processed/chat.jsonl]"},
                       {"interleave_probs", "[\"0.7\", \"0.3\"]"},
                       {"pack_factor", "4"},
                       {"mix_strategy", "interleave_under"},
                       {"gradient_accumulation_steps", "8"},
                       {"num_train_epochs", "1"},
                       {"output_dir", "outputs/dapt"}}),
       {}},
      {"SFT-Play's mistakes of memory, mended from the command line",
       {kGuides + "sft_play_base.yaml", "model.max_seq_len=1024", "train.batch_size=1",
        "train.grad_accum=32"},
       with(kSftPlay,
            {{"cutoff_len", "1024"},
             {"per_device_train_batch_size", "1"},
             {"gradient_accumulation_steps", "32"}},
            {"auto_find_batch_size"}),
       {}},
      {"verl's file",
       {kGuides + "verl_sft_trainer.yaml"},
       kVerl,
       {"trainer.project_name", "'trainer.logger' (report_to: wandb) (", "trainer.nnodes"}},
      {"verl on eight GPUs, as the fifth guide calls it",
       {kGuides + "verl_sft_trainer.yaml", "data.micro_batch_size_per_gpu=8",
        "model.fsdp_config.model_dtype=bf16", "data.multiturn.enable=true",
        "data.multiturn.messages_key=messages", "+trainer.resume_mode=disable",
        "model.enable_gradient_checkpointing=false"},
       with(kVerl,
            {{"per_device_train_batch_size", "8"},
             {"pure_bf16", "true"},
             {"param_dtype", "bf16"},
             {"grad_dtype", "bf16"},
             {"optim_dtype", "bf16"},
             {"messages_column", "messages"},
             {"gradient_checkpointing", "false"},
             {"resume_from_checkpoint", "\"false\""}},
            {"prompt_column", "response_column"}),
       {}},
      {"axolotl's file",
       {kGuides + "axolotl_fft.yaml"},
       kAxolotl,
       {"'model_type' changes nothing", "liger", "there is no adapter", "datasets.roles",
        "'pad_to_sequence_len' changes nothing", "longer than sequence_len are cut"}},
      {"axolotl's file with adapters in 4 bits, from the command line",
       {kGuides + "axolotl_fft.yaml", "adapter=qlora", "load_in_4bit=true", "sequence_len=1024", "lora_r=8",
        "fsdp=null", "fsdp_config=null", "evals_per_epoch=0", "datasets=[{path: d.jsonl}]"},
       with(kAxolotl,
            {{"finetuning_type", "lora"},
             {"quantization_bit", "4"},
             {"lora_rank", "8"},
             {"lora_alpha", "16"},
             {"lora_dropout", "0.05"},
             {"lora_target", "[all]"},
             {"dataset", "[d.jsonl]"},
             {"cutoff_len", "1024"}},
            {"zero_stage", "eval_steps", "eval_strategy", "messages_column"}),
       {}},
  };
  return all;
}

class Guides : public testing::TestWithParam<std::size_t> {};

TEST_P(Guides, MeanHereWhatTheyMeanThere) {
  const Guide& guide = guides()[GetParam()];
  SCOPED_TRACE(guide.name);
  const Resolved r = load(guide.arguments, {.for_training = true, .environment = {{"HOME", "/home/me"}}});
  for (const auto& [key, value] : guide.means) {
    const Field* field = find_field(key);
    ASSERT_TRUE(field != nullptr && field->status == Status::used) << key;
    const auto plain = [](std::string text) {
      std::erase(text, '"');
      return text;
    };
    EXPECT_EQ(plain(value_text(*field, r.config)), plain(value)) << key;
    EXPECT_TRUE(r.is_set(key)) << key;
  }
  for (const auto& [key, origin] : r.origins) {
    if (find_field(key)->status != Status::used) continue;
    EXPECT_TRUE(guide.means.contains(key)) << key << " is set, by " << origin.where;
  }
  for (const auto& part : guide.notes) EXPECT_TRUE(notes(r, part)) << part;
}

INSTANTIATE_TEST_SUITE_P(All, Guides, testing::Range<std::size_t>(0, guides().size()));

}  // namespace
}  // namespace octet::config::test::guides_test
