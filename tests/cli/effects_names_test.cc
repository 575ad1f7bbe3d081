// Keys without effect, which give a reason; refused keys; and keys of other programs, which are mapped to a
// key of this program or give a reason.
#include <set>

#include "cli/effects.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/config/key_table.h"

namespace octet::test {
namespace {

// Returns a value other than the default.
std::string asking(const config::Field& field) {
  switch (field.kind) {
    case config::Kind::boolean:
      return field.fallback == "true" ? "false" : "true";
    case config::Kind::integer:
      return "7";
    case config::Kind::number:
      return "0.5";
    case config::Kind::list:
      return "[word]";
    case config::Kind::arguments:
      return "{a: 1}";
    default:
      return "word";
  }
}

/// Observes the note of a key, which must be unique. Some keys also need bf16.
KeyRow idle_row(const config::Field& field) {
  return {field.name, {{"bf16", "true"}}, {{asking(field)}}, notes_of};
}

// Reasons shared by several keys, with prefixes of the keys' names.
const std::map<std::string, std::vector<std::string>> kFamilies{
    {"belongs to trainer export", {"export_"}},
    {"tokens are always counted, and logged by the second", {"include_"}},
    {"nothing is compiled at run time", {"torch_compile"}},
    {"nothing is uploaded", {"hub_", "push_to_hub", "export_hub_"}},
    {"exports are not quantised", {"export_quantization_"}},
    {"only text is trained, and rows with images, audio or video are refused",
     {"image_", "video_", "crop_to_patches", "use_audio_in_video", "audio_sampling_rate"}},
};

TEST(IdleKeys, GiveTheirOwnReason) {
  std::map<std::string, std::string> by_reason;
  for (const config::Field& field : config::schema()) {
    if (field.status != config::Status::noted) continue;
    SCOPED_TRACE(field.name + ": " + field.reason);
    EXPECT_FALSE(field.reason.starts_with("see ")) << "a reason, not a place to look for one";
    EXPECT_GE(split(field.reason, ' ').size(), 3u);
    const auto family = kFamilies.find(field.reason);
    if (family == kFamilies.end()) {
      const auto [other, alone] = by_reason.emplace(field.reason, field.name);
      EXPECT_TRUE(alone) << "the reason of " << other->second;
      continue;
    }
    bool fits = false;
    for (const auto& prefix : family->second) fits = fits || field.name.starts_with(prefix);
    EXPECT_TRUE(fits);
  }
}

TEST(IdleKeys, SayItWhenTheyAskForSomethingAndOnlyThen) {
  for (const config::Field& field : config::schema()) {
    if (field.status == config::Status::used) continue;
    SCOPED_TRACE(field.name);
    const Keys bf16{{"bf16", "true"}};
    Keys harmless = bf16, asks = bf16;
    if (field.fallback != "null") {
      harmless[field.name] = field.fallback;
      EXPECT_EQ(seen(harmless, notes_of), "");
    }
    asks[field.name] = asking(field);
    const std::string said = seen(asks, notes_of);
    EXPECT_TRUE(holds(said, field.name)) << said;
    EXPECT_TRUE(holds(said, field.reason)) << said;
    EXPECT_EQ(said.starts_with("refused: "), field.status == config::Status::refused) << said;
  }
}

// A key that would change numbers is refused or mapped to a key of this program.
TEST(IdleKeys, DoNotAskForOtherNumbers) {
  const auto refused = [](const Keys& keys) { return seen(keys, [](const auto&) { return "accepted"; }); };
  EXPECT_TRUE(holds(refused({{"bf16_full_eval", "true"}}), "'bf16_full_eval: true' needs 'bf16: true'"));
  EXPECT_EQ(refused({{"bf16_full_eval", "true"}, {"bf16", "true"}}), "accepted");
  EXPECT_TRUE(holds(refused({{"use_cpu", "true"}, {"device", "cuda"}}), "exclude each other"));
  EXPECT_TRUE(
      holds(refused({{"full_determinism", "true"}, {"deterministic", "false"}}), "exclude each other"));
  EXPECT_TRUE(holds(refused({{"optim", "adamw_8bit"}, {"optim_dtype", "bf16"}}), "exclude each other"));
  EXPECT_TRUE(holds(refused({{"optim", "adafactor"}}), "is not supported"));
  const auto strict = resolved({{"full_determinism", "true"}, {"deterministic", "strict"}});
  EXPECT_EQ(strict.config.deterministic, "strict");
  EXPECT_EQ(resolved({{"optim", "adamw_8bit"}, {"bf16", "true"}, {"pure_bf16", "true"}}).config.optim_dtype,
            "int8");
}

/// A key of another program with a value, and the keys to which it is mapped.
struct Mapped {
  std::string path, value;
  Keys becomes;
};

// Returns "a.b.c" and a value as nested YAML flow maps.
std::string nested(const std::string& path, const std::string& value) {
  std::string text, closing;
  for (const auto& part : split(path, '.')) {
    text += (text.empty() ? "" : " {") + part + ":";
    closing += closing.empty() && text == part + ":" ? "" : "}";
  }
  return text + " " + value + closing;
}

const std::vector<Mapped> kDeepSpeed{
    {"train_batch_size", "6", {{"global_batch_size", "6"}}},
    {"train_micro_batch_size_per_gpu", "3", {{"per_device_train_batch_size", "3"}}},
    {"gradient_accumulation_steps", "5", {{"gradient_accumulation_steps", "5"}}},
    {"gradient_clipping", "0.25", {{"max_grad_norm", "0.25"}}},
    {"communication_data_type", "bf16", {{"reduce_dtype", "bf16"}}},
    {"data_types.grad_accum_dtype", "bf16", {{"grad_dtype", "bf16"}}},
    {"bf16.enabled", "true", {{"bf16", "true"}}},
    {"bf16.bf16_master_weights_and_grads", "true", {{"param_dtype", "bf16"}, {"grad_dtype", "bf16"}}},
    {"bf16.bf16_optimizer_states", "true", {{"optim_dtype", "bf16"}}},
    {"zero_optimization.stage", "2", {{"zero_stage", "2"}}},
    {"zero_optimization.overlap_comm", "false", {{"overlap_comm", "false"}}},
    {"zero_optimization.cpu_offload", "true", {{"optim_state_cpu_offload", "true"}}},
    {"zero_optimization.offload_optimizer.device", "cpu", {{"optim_state_cpu_offload", "true"}}},
    {"zero_optimization.zero_hpz_partition_size", "8", {{"zero_group_size", "\"8\""}}},
    {"zero_optimization.mics_shard_size", "4", {{"zero_group_size", "\"4\""}}},
};
const std::vector<Mapped> kDeepSpeedOptimizer{
    {"optimizer.params.lr", "0.125", {{"learning_rate", "0.125"}}},
    {"optimizer.params.betas", "[0.5, 0.75]", {{"adam_beta1", "0.5"}, {"adam_beta2", "0.75"}}},
    {"optimizer.params.eps", "0.125", {{"adam_epsilon", "0.125"}}},
    {"optimizer.params.weight_decay", "0.125", {{"weight_decay", "0.125"}}},
};
const std::vector<Mapped> kDialects{
    {"torch_dtype", "bfloat16", {{"export_dtype", "bf16"}}},
    {"model.lora_rank", "3", {{"finetuning_type", "lora"}, {"lora_rank", "3"}}},
    {"model.name", "m", {{"model_name_or_path", "m"}}},
    {"model.local_dir", "m", {{"model_name_or_path", "m"}}},
    {"model.max_seq_len", "99", {{"cutoff_len", "99"}}},
    {"tuning.mode", "full", {{"finetuning_type", "full"}}},
    {"train.batch_size", "3", {{"per_device_train_batch_size", "3"}}},
    {"train.per_device_train_batch_size", "3", {{"per_device_train_batch_size", "3"}}},
    {"train.per_device_eval_batch_size", "3", {{"per_device_eval_batch_size", "3"}}},
    {"train.gradient_accumulation_steps", "3", {{"gradient_accumulation_steps", "3"}}},
    {"train.overwrite_output_dir", "true", {{"overwrite_output_dir", "true"}}},
    {"train.eval_batch_size", "3", {{"per_device_eval_batch_size", "3"}}},
    {"train.grad_accum", "3", {{"gradient_accumulation_steps", "3"}}},
    {"train.epochs", "7", {{"num_train_epochs", "7"}}},
    {"train.steps", "7", {{"max_steps", "7"}}},
    {"train.max_steps", "7", {{"max_steps", "7"}}},
    {"train.learning_rate", "0.5", {{"learning_rate", "0.5"}}},
    {"train.warmup_ratio", "0.5", {{"warmup_ratio", "0.5"}}},
    {"train.num_warmup_steps", "5", {{"warmup_steps", "5"}}},
    {"train.warmup_steps", "5", {{"warmup_steps", "5"}}},
    {"train.weight_decay", "0.5", {{"weight_decay", "0.5"}}},
    {"train.max_grad_norm", "0.5", {{"max_grad_norm", "0.5"}}},
    {"train.lr_scheduler_type", "cosine", {{"lr_scheduler_type", "cosine"}}},
    {"train.optim", "paged_adamw_8bit", {{"optim", "paged_adamw_8bit"}, {"optim_dtype", "int8"}}},
    {"train.bf16", "true", {{"bf16", "true"}}},
    {"train.gradient_checkpointing", "true", {{"gradient_checkpointing", "true"}}},
    {"train.logging_steps", "3", {{"logging_steps", "3"}}},
    {"train.save_strategy", "epoch", {{"save_strategy", "epoch"}}},
    {"train.save_steps", "3", {{"save_steps", "3"}}},
    {"train.save_total_limit", "3", {{"save_total_limit", "3"}}},
    {"train.eval_steps", "3", {{"eval_steps", "3"}}},
    {"train.resume_from_checkpoint", "c", {{"resume_from_checkpoint", "c"}}},
    {"train.report_to", "tensorboard", {{"report_to", "[tensorboard]"}}},
    {"train.run_name", "r", {{"run_name", "r"}}},
    {"train.output_dir", "r", {{"output_dir", "r"}}},
    {"train.seed", "3", {{"seed", "3"}}},
    {"data.train_path", "t", {{"dataset", "[t]"}}},
    {"data.val_path", "t", {{"eval_dataset", "[t]"}}},
    {"data.template_path", "t.jinja", {{"template", "t.jinja"}}},
    {"data.split.train_ratio", "0.75", {{"val_size", "0.25"}}},
    {"data.split.train", "0.75", {{"val_size", "0.25"}}},
    {"data.split.val", "0.25", {{"val_size", "0.25"}}},
    {"data.split.val_ratio", "0.25", {{"val_size", "0.25"}}},
    {"data.split.test", "0.25", {{"val_size", "0.25"}}},
    {"data.split.test_ratio", "0.25", {{"val_size", "0.25"}}},
    {"datasets", "[{path: t, weight: 2}]", {{"dataset", "[t]"}, {"interleave_probs", "[\"2\"]"}}},
    {"logging.backend", "tensorboard", {{"report_to", "[tensorboard]"}}},
    {"logging.log_interval", "3", {{"logging_steps", "3"}}},
    {"task_mode", "cpt", {{"stage", "pt"}}},
    {"mode", "cpt", {{"stage", "pt"}}},
    {"block_size", "99", {{"cutoff_len", "99"}}},
    {"data.train_files", "t", {{"dataset", "[t]"}}},
    {"data.val_files", "t", {{"eval_dataset", "[t]"}}},
    {"data.train_batch_size", "6", {{"global_batch_size", "6"}}},
    {"data.micro_batch_size_per_gpu", "3", {{"per_device_train_batch_size", "3"}}},
    {"data.micro_batch_size", "3", {{"per_device_train_batch_size", "3"}}},
    {"data.max_length", "99", {{"cutoff_len", "99"}}},
    {"data.train_max_samples", "9", {{"max_samples", "9"}}},
    {"data.truncation", "error", {{"truncation", "error"}}},
    {"model.partial_pretrain", "m", {{"model_name_or_path", "m"}, {"zero_stage", "3"}, {"bf16", "true"}}},
    {"data.multiturn.enable", "true", {{"messages_column", "messages"}}},
    {"data.multiturn.messages_key", "c", {{"messages_column", "c"}}},
    {"data.messages_key", "c", {{"messages_column", "c"}}},
    {"data.chat_template", "chatml", {{"template", "chatml"}}},
    {"model.fsdp_config.model_dtype", "bfloat16", {{"bf16", "true"}, {"pure_bf16", "true"}}},
    {"model.strategy", "fsdp2", {{"zero_stage", "3"}}},
    {"model.lora_rank", "4", {{"finetuning_type", "lora"}, {"lora_rank", "4"}}},
    {"model.fsdp_config.cpu_offload", "true", {{"optim_state_cpu_offload", "true"}}},
    {"model.fsdp_config.fsdp_size", "8", {{"zero_group_size", "\"8\""}}},
    {"model.enable_gradient_checkpointing", "true", {{"gradient_checkpointing", "true"}}},
    {"optim.lr", "0.5", {{"learning_rate", "0.5"}}},
    {"optim.betas", "[0.5, 0.75]", {{"adam_beta1", "0.5"}, {"adam_beta2", "0.75"}}},
    {"optim.weight_decay", "0.5", {{"weight_decay", "0.5"}}},
    {"optim.lr_warmup_steps_ratio", "0.5", {{"warmup_ratio", "0.5"}}},
    {"optim.warmup_steps_ratio", "0.5", {{"warmup_ratio", "0.5"}}},
    {"optim.clip_grad", "0.5", {{"max_grad_norm", "0.5"}}},
    {"optim.lr_scheduler", "wsd", {{"lr_scheduler_type", "warmup_stable_decay"}}},
    {"trainer.default_local_dir", "r", {{"output_dir", "r"}}},
    {"trainer.experiment_name", "r", {{"run_name", "r"}}},
    {"trainer.total_epochs", "7", {{"num_train_epochs", "7"}}},
    {"trainer.total_training_steps", "7", {{"max_steps", "7"}}},
    {"trainer.logger", "tensorboard", {{"report_to", "[tensorboard]"}}},
    {"trainer.seed", "3", {{"seed", "3"}}},
    {"trainer.save_freq", "3", {{"save_steps", "3"}}},
    {"trainer.max_ckpt_to_keep", "3", {{"save_total_limit", "3"}}},
    {"trainer.resume_mode", "disable", {{"resume_from_checkpoint", "\"false\""}}},
    {"trainer.resume_from_path", "c", {{"resume_from_checkpoint", "c"}}},
    {"trainer.resume_path", "c", {{"resume_from_checkpoint", "c"}}},
};
// These need adapters or an evaluation set, or are mapped to keys that only give a note or are refused.
const std::set<std::string> kElsewhere{"tuning.lora.r",
                                       "tuning.lora.alpha",
                                       "tuning.lora.dropout",
                                       "tuning.lora.target_modules",
                                       "model.lora_alpha",
                                       "model.target_modules",
                                       "model.lora_adapter_path",
                                       "train.evaluation_strategy",
                                       "train.eval_strategy",
                                       "trainer.test_freq",
                                       "model.trust_remote_code",
                                       "model.revision",
                                       "train.fp16",
                                       "train.dataloader_num_workers",
                                       "train.dataloader_pin_memory",
                                       "train.load_best_model_at_end",
                                       "data.prompt_key",
                                       "data.response_key",
                                       "model.lora_alpha",
                                       "model.target_modules",
                                       "train.metric_for_best_model",
                                       "train.greater_is_better",
                                       "data.cache_dir"};

config::Resolved load_alone(const std::string& yaml) {
  return config::load_text(yaml, "foreign.yaml", {}, {.for_training = false, .environment = {}});
}

void expect_mapped(const std::vector<Mapped>& table, const std::function<std::string(const Mapped&)>& yaml) {
  for (const Mapped& row : table) {
    SCOPED_TRACE(row.path);
    const config::Resolved with = load_alone(yaml(row));
    const config::Resolved without =
        load_alone(yaml({"seed", "42", {}}).starts_with("deepspeed") ? "" : "seed: 42");
    for (const auto& [key, value] : row.becomes) {
      const config::Field& field = *config::find_field(key);
      EXPECT_EQ(config::value_text(field, with.config), value);
      if (row.path != "tuning.mode") {
        EXPECT_NE(config::value_text(field, without.config), value) << "a value that shows nothing";
      }
    }
  }
}

std::set<std::string> paths_of(const std::vector<Mapped>& table) {
  std::set<std::string> paths;
  for (const Mapped& row : table) paths.insert(row.path);
  return paths;
}

void expect_all_mapped(const std::vector<config::ForeignKey>& keys, const std::vector<Mapped>& table) {
  const std::set<std::string> paths = paths_of(table);
  for (const config::ForeignKey& key : keys) {
    if (key.becomes.empty() || kElsewhere.contains(key.path)) continue;
    EXPECT_TRUE(paths.contains(key.path)) << key.path << " has no row";
  }
}

TEST(ForeignKeys, OfDeepSpeedBecomeOurs) {
  // Adds the keys that bf16 storage requires.
  const auto yaml = [](const Mapped& row) {
    const bool gradients = row.path == "data_types.grad_accum_dtype";
    return "deepspeed: {" + nested(row.path, row.value) + "}\n" +
           (row.path.find("bf16") != std::string::npos && row.path != "bf16.enabled" ? "bf16: true\n" : "") +
           (gradients ? "bf16: true\nparam_dtype: bf16\n" : "") +
           (row.becomes.contains("zero_group_size") ? "zero_stage: 2\n" : "");
  };
  expect_mapped(kDeepSpeed, yaml);
  expect_mapped(kDeepSpeedOptimizer, yaml);
  expect_all_mapped(config::deepspeed_keys(), kDeepSpeed);
}

TEST(ForeignKeys, OfSftPlayAndVerlBecomeOurs) {
  expect_mapped(kDialects, [](const Mapped& row) {
    return nested(row.path, row.value) + (row.becomes.contains("zero_group_size") ? "\nzero_stage: 2\n" : "");
  });
  for (const char* trainer : {"SFT-Play", "verl"})
    expect_all_mapped(config::dialect_keys(trainer), kDialects);
}

// The keys of kElsewhere.
TEST(ForeignKeys, BecomeKeysThatAreNotedOrRefusedOrNeedOthers) {
  const auto becomes = [](const std::string& path, const std::string& value, const std::string& key) {
    const config::Resolved r = load_alone(nested(path, value));
    EXPECT_TRUE(r.extra.contains(key)) << path;
    EXPECT_TRUE(holds(notes_of(r), key)) << path;
  };
  becomes("model.trust_remote_code", "true", "trust_remote_code");
  becomes("model.revision", "x", "model_revision");
  becomes("train.dataloader_num_workers", "3", "dataloader_num_workers");
  becomes("train.dataloader_pin_memory", "false", "dataloader_pin_memory");
  becomes("data.cache_dir", "x", "cache_dir");
  EXPECT_THROW(load_alone("train: {fp16: true}"), Error);
  EXPECT_TRUE(load_alone("eval_dataset: e\ntrain: {eval_strategy: steps, load_best_model_at_end: true}")
                  .config.load_best_model_at_end);
  const config::Config best =
      load_alone("train: {metric_for_best_model: eval_loss, greater_is_better: false}").config;
  EXPECT_EQ(best.metric_for_best_model, "eval_loss");
  EXPECT_EQ(best.greater_is_better, false);
  const config::Config pair = load_alone("data: {prompt_key: q, response_key: a}").config;
  EXPECT_EQ(pair.prompt_column, "q");
  EXPECT_EQ(pair.response_column, "a");
  const config::Config lora =
      load_alone("model: {lora_rank: 4, lora_alpha: 3, target_modules: [q_proj]}").config;
  EXPECT_EQ(lora.lora_alpha, 3);
  EXPECT_EQ(lora.lora_target, std::vector<std::string>{"q_proj"});
  for (const char* path : {"train.evaluation_strategy", "train.eval_strategy"})
    EXPECT_EQ(load_alone("eval_dataset: e\n" + nested(path, "epoch")).config.eval_strategy, "epoch") << path;
  const config::Config verl = load_alone("eval_dataset: e\ntrainer: {test_freq: 3}").config;
  EXPECT_EQ(verl.eval_steps, 3);
  EXPECT_EQ(verl.eval_strategy, "steps");
}

TEST(ForeignKeys, ThatBecomeNothingGiveTheirOwnReason) {
  for (const auto& keys :
       {config::deepspeed_keys(), config::dialect_keys("SFT-Play"), config::dialect_keys("verl")}) {
    for (const config::ForeignKey& key : keys) {
      SCOPED_TRACE(key.path + ": " + key.reason);
      EXPECT_NE(key.becomes.empty(), key.reason.empty());
      if (!key.becomes.empty()) continue;
      EXPECT_FALSE(key.reason.starts_with("see "));
      EXPECT_GE(split(key.reason, ' ').size(), 2u);
    }
  }
  const auto load = [](const std::string& inside) {
    return notes_of(load_alone("deepspeed: {" + inside + "}"));
  };
  for (const config::ForeignKey& key : config::deepspeed_keys()) {
    if (!key.becomes.empty()) continue;
    SCOPED_TRACE(key.path);
    std::string said;
    try {
      said = load(nested(key.path, "word"));
    } catch (const Error& e) {
      said = e.what();
    }
    EXPECT_TRUE(holds(said, key.path) && holds(said, key.reason)) << said;
  }
}

}  // namespace

std::vector<KeyRow> idle_rows() {
  std::vector<KeyRow> rows;
  for (const config::Field& field : config::schema()) {
    if (field.status != config::Status::used) rows.push_back(idle_row(field));
  }
  return rows;
}

namespace {
TEST(Effects, OfIdleKeysAreWords) {
  expect_effects(idle_rows());
}
}  // namespace

}  // namespace octet::test
