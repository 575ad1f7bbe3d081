// The table of SFT-Play's keys.
#include "dialects/dialect_facts.h"

namespace octet::config {
namespace {

constexpr const char* kNames = "rows are recognised by their fields";

// The dtype of the saved model in transformers. "auto" keeps the dtype of the model.
void take_dtype(const Node& node, const Location& at, const Target& target) {
  if (node.kind == Node::Kind::scalar && node.text == "auto") return;
  Node word = node;
  if (word.text == "float32") word.text = "fp32";
  if (word.text == "bfloat16") word.text = "bf16";
  if (word.text == "float16") word.text = "fp16";
  Location known = at;
  known.written = node.text;
  target.settings.add("export_dtype", word, known, target.replace);
}

constexpr Entry kSftPlayKeys[] = {
    {"torch_dtype", Action::handled, "export_dtype", "", take_dtype},
    {"model.name", Action::weak, "model_name_or_path"},
    {"model.local_dir", Action::map, "model_name_or_path"},
    {"model.max_seq_len", Action::fact, "cutoff_len"},
    {"model.type", Action::note, "the architecture is read from config.json"},
    {"model.trust_remote_code", Action::map, "trust_remote_code"},
    {"model.revision", Action::map, "model_revision"},
    {"tuning.mode", Action::map, "finetuning_type"},
    {"tuning.backend", Action::note, "there is one backend, this program"},
    {"tuning.lora.r", Action::map, "lora_rank"},
    {"tuning.lora.alpha", Action::map, "lora_alpha"},
    {"tuning.lora.dropout", Action::map, "lora_dropout"},
    {"tuning.lora.target_modules", Action::map, "lora_target", "auto=all,all-linear=all"},
    {"train.batch_size", Action::fact, "per_device_train_batch_size"},
    {"train.per_device_train_batch_size", Action::fact, "per_device_train_batch_size"},
    {"train.eval_batch_size", Action::map, "per_device_eval_batch_size"},
    {"train.per_device_eval_batch_size", Action::map, "per_device_eval_batch_size"},
    {"train.grad_accum", Action::fact, "gradient_accumulation_steps"},
    {"train.gradient_accumulation_steps", Action::fact, "gradient_accumulation_steps"},
    {"train.epochs", Action::map, "num_train_epochs"},
    {"train.steps", Action::map, "max_steps"},
    {"train.max_steps", Action::map, "max_steps"},
    {"train.learning_rate", Action::map, "learning_rate"},
    {"train.warmup_ratio", Action::map, "warmup_ratio"},
    {"train.num_warmup_steps", Action::map, "warmup_steps"},
    {"train.warmup_steps", Action::map, "warmup_steps"},
    {"train.weight_decay", Action::map, "weight_decay"},
    {"train.max_grad_norm", Action::map, "max_grad_norm"},
    {"train.lr_scheduler_type", Action::map, "lr_scheduler_type"},
    {"train.optim", Action::map, "optim"},
    {"train.bf16", Action::map, "bf16"},
    {"train.fp16", Action::map, "fp16"},
    {"train.gradient_checkpointing", Action::map, "gradient_checkpointing"},
    {"train.dataloader_num_workers", Action::map, "dataloader_num_workers"},
    {"train.dataloader_pin_memory", Action::map, "dataloader_pin_memory"},
    {"train.logging_steps", Action::map, "logging_steps"},
    {"train.evaluation_strategy", Action::map, "eval_strategy"},
    {"train.eval_strategy", Action::map, "eval_strategy"},
    {"train.eval_steps", Action::map, "eval_steps"},
    {"train.save_strategy", Action::map, "save_strategy"},
    {"train.save_steps", Action::map, "save_steps"},
    {"train.save_total_limit", Action::map, "save_total_limit"},
    {"train.load_best_model_at_end", Action::map, "load_best_model_at_end"},
    {"train.metric_for_best_model", Action::fact, "metric_for_best_model"},
    {"train.greater_is_better", Action::fact, "greater_is_better"},
    {"train.resume_from_checkpoint", Action::map, "resume_from_checkpoint"},
    {"train.report_to", Action::map, "report_to"},
    {"train.run_name", Action::weak, "run_name"},
    {"train.output_dir", Action::map, "output_dir"},
    {"train.overwrite_output_dir", Action::fact, "overwrite_output_dir"},
    {"train.seed", Action::weak, "seed"},
    {"data.format", Action::note, kNames},
    {"data.template_path", Action::map, "template"},
    {"data.train_path", Action::fact, "dataset"},
    {"data.val_path", Action::map, "eval_dataset"},
    {"data.test_path", Action::note, "only training and validation data are read"},
    {"data.cache_dir", Action::map, "cache_dir"},
    {"data.split.train_ratio", Action::fact, "val_size"},
    {"data.split.train", Action::fact, "val_size"},
    {"data.split.val", Action::fact, "val_size"},
    {"data.split.val_ratio", Action::fact, "val_size"},
    {"data.split.test", Action::fact, "val_size"},
    {"data.split.test_ratio", Action::fact, "val_size"},
    {"logging.backend", Action::map, "report_to"},
    {"logging.log_interval", Action::weak, "logging_steps"},
    {"task_mode", Action::fact, "stage packing"},
    {"mode", Action::fact, "stage packing"},
    {"block_size", Action::fact, "cutoff_len"},
    {"stride", Action::note, "blocks do not overlap"},
    {"datasets", Action::fact, "dataset interleave_probs mix_strategy"},
};

}  // namespace

constinit const Dialect kSftPlay{
    .name = "SFT-Play", .keys = kSftPlayKeys, .bare_keys = true, .settle = settle_sft_play};

}  // namespace octet::config
