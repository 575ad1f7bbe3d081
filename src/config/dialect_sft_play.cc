// SFT-Play's keys.
#include "dialects.h"

namespace octet::config {
namespace {

constexpr const char* kNames = "rows are recognised by their fields";

// datasets: [{path, name, type, weight}], interleaved by weight until the first has run out, as Hugging
// Face's interleave_datasets does.
void take_datasets(const Node& node, const Location& at, const Target& target) {
  if (node.is_null()) return;
  const auto wrong = [&](const std::string& found) {
    complain({.what = "value of '" + at.key + "' cannot be used",
              .expected = "a list of {path: FILE, weight: NUMBER}",
              .found = found,
              .where = at.where});
  };
  if (node.kind != Node::Kind::list) wrong(shown(node));
  Node paths, weights;
  paths.kind = weights.kind = Node::Kind::list;
  bool weighted = false;
  for (const Node& item : node.items) {
    const Node* path = &item;
    if (item.kind == Node::Kind::map) {
      for (const auto& [key, value] : item.members) {
        if (key != "path" && key != "name" && key != "type" && key != "weight")
          unknown_key(key, at.where + ": " + at.key, {"path", "name", "type", "weight"});
      }
      path = item.find("path") != nullptr ? item.find("path") : item.find("name");
    }
    if (path == nullptr || path->kind != Node::Kind::scalar) wrong(shown(item));
    paths.items.push_back(*path);
    const Node* weight = item.find("weight");
    weighted = weighted || weight != nullptr;
    weights.items.push_back(weight != nullptr ? *weight : scalar_node("1"));
  }
  target.settings.add("dataset", paths, at, target.replace);
  if (!weighted) return;
  target.settings.add("interleave_probs", weights, at, target.replace);
  target.settings.add("mix_strategy", scalar_node("interleave_under"), at, target.replace);
}

// Texts are trained whole and conversations by their answers, in packed sequences of both.
void take_mode(const Node& node, const Location& at, const Target& target) {
  if (node.is_null()) return;
  const bool mixed = node.kind == Node::Kind::scalar && node.text == "cpt_mixed";
  Node stage = node;
  if (mixed) stage.text = "sft";
  if (node.text == "cpt") stage.text = "pt";
  target.settings.add("stage", stage, at, target.replace);
  if (mixed) target.settings.add("packing", scalar_node("true"), at, target.replace);
}

// A number is one; "auto" is decided with other keys.
void take_count(const char* path, const char* key, const Node& node, const Location& at,
                const Target& target) {
  const bool automatic = node.kind == Node::Kind::scalar && node.text == "auto";
  if (automatic || target.replace) target.sources.facts.erase(path);
  if (automatic && target.replace) target.settings.add(key, Node{}, at, true);
  if (automatic) {
    target.sources.facts[path] = {.node = node, .at = at, .override = target.replace};
  } else {
    target.settings.add(key, node, at, target.replace);
  }
}

void take_batch(const Node& node, const Location& at, const Target& target) {
  take_count("train.batch_size", "per_device_train_batch_size", node, at, target);
}

void take_accumulation(const Node& node, const Location& at, const Target& target) {
  take_count("train.grad_accum", "gradient_accumulation_steps", node, at, target);
}

// transformers' dtype of the saved model; "auto" is the one that it has.
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

constexpr Entry kKeys[] = {
    {"torch_dtype", Action::handled, "export_dtype", "", take_dtype},
    {"model.name", Action::weak, "model_name_or_path"},
    {"model.local_dir", Action::map, "model_name_or_path"},
    {"model.max_seq_len", Action::map, "cutoff_len"},
    {"model.type", Action::note, "the architecture is read from config.json"},
    {"model.trust_remote_code", Action::map, "trust_remote_code"},
    {"model.revision", Action::map, "model_revision"},
    {"tuning.mode", Action::map, "finetuning_type"},
    {"tuning.backend", Action::note, "there is one backend, this program"},
    {"tuning.lora.r", Action::map, "lora_rank"},
    {"tuning.lora.alpha", Action::map, "lora_alpha"},
    {"tuning.lora.dropout", Action::map, "lora_dropout"},
    {"tuning.lora.target_modules", Action::map, "lora_target", "auto=all,all-linear=all"},
    {"train.batch_size", Action::handled, "per_device_train_batch_size", "", take_batch},
    {"train.eval_batch_size", Action::map, "per_device_eval_batch_size"},
    {"train.grad_accum", Action::handled, "gradient_accumulation_steps", "", take_accumulation},
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
    {"train.metric_for_best_model", Action::map, "metric_for_best_model"},
    {"train.greater_is_better", Action::map, "greater_is_better"},
    {"train.resume_from_checkpoint", Action::map, "resume_from_checkpoint"},
    {"train.report_to", Action::map, "report_to"},
    {"train.run_name", Action::weak, "run_name"},
    {"train.output_dir", Action::map, "output_dir"},
    {"train.seed", Action::weak, "seed"},
    {"data.format", Action::note, kNames},
    {"data.template_path", Action::map, "template"},
    {"data.train_path", Action::map, "dataset"},
    {"data.val_path", Action::map, "eval_dataset"},
    {"data.test_path", Action::note, "only training and validation data are read"},
    {"data.cache_dir", Action::map, "cache_dir"},
    {"data.split.train_ratio", Action::fact, "val_size"},
    {"data.split.train", Action::fact, "val_size"},
    {"data.split.val", Action::note, "what train_ratio leaves is held out"},
    {"data.split.val_ratio", Action::note, "what train_ratio leaves is held out"},
    {"data.split.test", Action::note, "what train_ratio leaves is held out, the share for tests with it"},
    {"data.split.test_ratio", Action::note,
     "what train_ratio leaves is held out, the share for tests with it"},
    {"logging.backend", Action::map, "report_to"},
    {"logging.log_interval", Action::weak, "logging_steps"},
    {"task_mode", Action::handled, "stage", "", take_mode},
    {"mode", Action::weak, "stage", "", take_mode},
    {"block_size", Action::weak, "cutoff_len"},
    {"datasets", Action::handled, "dataset interleave_probs mix_strategy", "", take_datasets},
    {"include", Action::refuse, "write it into the configuration file, which then takes the other's keys"},
};

}  // namespace

std::span<const Entry> sft_play_keys() {
  return kKeys;
}

}  // namespace octet::config
