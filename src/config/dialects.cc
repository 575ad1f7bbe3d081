// Other trainers' YAML, as one table from their dotted keys to ours.
#include <algorithm>
#include <string_view>

#include "octet/base/strings.h"
#include "settings.h"

namespace octet::config {
namespace {

enum class Action : std::uint8_t {
  map,        ///< the value of `key`
  weak,       ///< the same, unless the source names `key` otherwise too
  auto_null,  ///< map; "auto" means not given
  minus_off,  ///< map; a negative number means "no" (never)
  note,       ///< accepted without effect; `key` says why
  refuse,     ///< refused unless null, false or empty; `key` says why
  rank,       ///< verl's rank of adapters: 0 trains everything
};

struct Entry {
  std::string_view path;
  Action action;
  const char* key;
  /// "from=to,from=to": words that are spelt differently here.
  const char* words = "";
};

constexpr const char* kAuto = "choosing the batch is not built; set a number";
constexpr const char* kNames = "rows are recognised by their fields";
constexpr const char* kPaths = "list the files in data.train_path";

constexpr Entry kEntries[] = {
    // transformers
    {"torch_dtype", Action::auto_null, "export_dtype", "float32=fp32,bfloat16=bf16,float16=fp16"},
    // SFT-Play
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
    {"train.batch_size", Action::map, "per_device_train_batch_size"},
    {"train.eval_batch_size", Action::map, "per_device_eval_batch_size"},
    {"train.grad_accum", Action::auto_null, "gradient_accumulation_steps"},
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
    {"data.template_path", Action::refuse, "name a chat template with 'template'"},
    {"data.train_path", Action::map, "dataset"},
    {"data.val_path", Action::map, "eval_dataset"},
    {"data.test_path", Action::note, "only training and validation data are read"},
    {"data.cache_dir", Action::map, "cache_dir"},
    {"data.split", Action::note, "val_size says how much is held out"},
    {"logging.backend", Action::map, "report_to"},
    {"logging.log_interval", Action::weak, "logging_steps"},
    {"task_mode", Action::map, "stage", "cpt=pt"},
    {"mode", Action::weak, "stage", "cpt=pt"},
    {"block_size", Action::weak, "cutoff_len"},
    {"pack_factor", Action::note, "packing fills sequences of cutoff_len"},
    {"datasets", Action::refuse, kPaths},
    {"include", Action::refuse, "write the keys of the included file out"},
    // verl
    {"data.train_files", Action::map, "dataset"},
    {"data.val_files", Action::map, "eval_dataset"},
    {"data.train_batch_size", Action::map, "global_batch_size"},
    {"data.micro_batch_size_per_gpu", Action::map, "per_device_train_batch_size"},
    {"data.micro_batch_size", Action::weak, "per_device_train_batch_size"},
    {"data.max_length", Action::map, "cutoff_len"},
    {"data.truncation", Action::note, "long rows are truncated, counted and reported"},
    {"data.prompt_key", Action::note, kNames},
    {"data.response_key", Action::note, kNames},
    {"data.multiturn", Action::note, kNames},
    {"data.balance_dp_token", Action::note, "the loss is normalised by all trained tokens of a step"},
    {"data.train_max_samples", Action::minus_off, "max_samples"},
    {"model.partial_pretrain", Action::map, "model_name_or_path"},
    {"model.fsdp_config.model_dtype", Action::map, "bf16",
     "fp32=false,float32=false,bf16=true,bfloat16=true"},
    {"model.fsdp_config.cpu_offload", Action::map, "optim_state_cpu_offload"},
    {"model.fsdp_config.offload_params", Action::refuse, "parameters stay on the device"},
    {"model.fsdp_config.wrap_policy", Action::note, "parameters are cut and gathered by layer"},
    {"model.enable_gradient_checkpointing", Action::map, "gradient_checkpointing"},
    {"model.lora_rank", Action::rank, "lora_rank"},
    {"model.lora_alpha", Action::map, "lora_alpha"},
    {"model.target_modules", Action::map, "lora_target", "all-linear=all"},
    {"model.lora_adapter_path", Action::map, "adapter_name_or_path"},
    {"model.strategy", Action::note, "zero_stage says what the ranks share out"},
    {"model.use_liger", Action::note, "kernels are always fused"},
    {"optim.lr", Action::map, "learning_rate"},
    {"optim.betas", Action::map, "adam_beta1"},
    {"optim.weight_decay", Action::map, "weight_decay"},
    {"optim.lr_warmup_steps_ratio", Action::map, "warmup_ratio"},
    {"optim.warmup_steps_ratio", Action::weak, "warmup_ratio"},
    {"optim.clip_grad", Action::map, "max_grad_norm"},
    {"optim.lr_scheduler", Action::map, "lr_scheduler_type", "wsd=warmup_stable_decay"},
    {"trainer.default_local_dir", Action::map, "output_dir"},
    {"trainer.project_name", Action::note, "logs lie in output_dir"},
    {"trainer.experiment_name", Action::map, "run_name"},
    {"trainer.total_epochs", Action::map, "num_train_epochs"},
    {"trainer.total_training_steps", Action::map, "max_steps"},
    {"trainer.logger", Action::map, "report_to", "console=none"},
    {"trainer.seed", Action::map, "seed"},
    {"trainer.save_freq", Action::minus_off, "save_steps"},
    {"trainer.test_freq", Action::minus_off, "eval_steps"},
    {"trainer.nnodes", Action::note, "the launcher says how many ranks there are"},
    {"trainer.n_gpus_per_node", Action::note, "the launcher says how many ranks there are"},
    {"trainer.max_ckpt_to_keep", Action::map, "save_total_limit"},
    {"trainer.resume_mode", Action::map, "resume_from_checkpoint", "disable=false"},
    {"trainer.resume_from_path", Action::weak, "resume_from_checkpoint"},
    {"trainer.checkpoint", Action::note, "a checkpoint always holds model, optimizer and progress"},
    {"ulysses_sequence_parallel_size", Action::note, "sequences are not split over ranks"},
    {"use_remove_padding", Action::note, "sequences are joined without padding, packed or not"},
};

const Entry* find_entry(const std::string& path) {
  const auto* found = std::find_if(std::begin(kEntries), std::end(kEntries),
                                   [&](const Entry& entry) { return entry.path == path; });
  return found == std::end(kEntries) ? nullptr : found;
}

bool is_section(const std::string& path) {
  const std::string prefix = path + ".";
  return std::any_of(std::begin(kEntries), std::end(kEntries),
                     [&](const Entry& entry) { return entry.path.substr(0, prefix.size()) == prefix; });
}

Strings known_names() {
  Strings names = field_names();
  for (const Entry& entry : kEntries) names.emplace_back(entry.path);
  return names;
}

Node respelt(const Entry& entry, Node node) {
  for (Node& item : node.items) item = respelt(entry, std::move(item));
  if (node.kind != Node::Kind::scalar) return node;
  for (const auto& pair : split(entry.words, ',')) {
    const std::size_t sign = pair.find('=');
    if (sign != std::string::npos && pair.substr(0, sign) == node.text) {
      node.text = pair.substr(sign + 1);
      return node;
    }
  }
  return node;
}

bool asks_for_nothing(const Node& node) {
  if (node.is_null()) return true;
  if (node.kind == Node::Kind::list) return node.items.empty();
  if (node.kind == Node::Kind::map) return node.members.empty();
  const auto flag = read_bool(node.text);
  const auto number = read_number(node.text);
  return (flag && !*flag) || (number && *number == 0);
}

Node word(const std::string& text) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  return node;
}

// "off" in the way of the key: a strategy, or null.
void switch_off(const std::string& key, const Location& at, Settings& settings, bool replace) {
  const Node no = word("no");
  if (key == "save_steps") {
    settings.add("save_strategy", no, at, replace);
  } else if (key == "eval_steps") {
    settings.add("eval_strategy", no, at, replace);
  } else {
    settings.add(key, Node{}, at, replace);
  }
}

// An interval of evaluation means nothing without the strategy.
void switch_on_evaluation(const Location& at, Settings& settings, bool replace) {
  settings.add("eval_strategy", word("steps"), at, replace);
}

struct Target {
  Settings& settings;
  Sources& sources;
  bool replace;
};

// verl trains adapters where their rank is not 0.
void apply_rank(const Node& node, const Location& at, const Target& target) {
  const bool none = asks_for_nothing(node);
  if (target.replace || !target.settings.has("finetuning_type"))
    target.settings.add("finetuning_type", word(none ? "full" : "lora"), at, target.replace);
  if (!none) target.settings.add("lora_rank", node, at, target.replace);
}

void apply(const Entry& entry, const Node& node, const Location& at, const Target& target) {
  switch (entry.action) {
    case Action::note:
      target.sources.note("'" + at.key + "' changes nothing here: " + entry.key);
      return;
    case Action::refuse:
      if (asks_for_nothing(node) || (!target.replace && target.sources.argued.contains(at.key))) return;
      complain({.what = "'" + at.key + "' is not supported",
                .found = shown(node),
                .where = at.where,
                .fix = entry.key});
    case Action::weak:
      if (node.is_null()) return;
      if (target.settings.has(entry.key)) {
        target.sources.note("'" + at.key + "' gives way to '" + target.settings.find(entry.key)->at.key +
                            "'");
        return;
      }
      break;
    case Action::auto_null:
      if (node.kind == Node::Kind::scalar && node.text == "auto") return;
      break;
    case Action::minus_off: {
      const auto number = node.kind == Node::Kind::scalar ? read_number(node.text) : std::nullopt;
      if (number && *number < 0) return switch_off(entry.key, at, target.settings, target.replace);
      if (entry.path == "trainer.test_freq") switch_on_evaluation(at, target.settings, target.replace);
      break;
    }
    case Action::rank:
      if (!node.is_null()) apply_rank(node, at, target);
      return;
    case Action::map:
      if (node.is_null()) return;
      break;
  }
  if (entry.path == "train.batch_size" && node.text == "auto") {
    complain({.what = "'" + at.key + ": auto' is not supported", .where = at.where, .fix = kAuto});
  }
  if (entry.path == "optim.betas") {
    if (node.kind != Node::Kind::list || node.items.size() != 2) {
      complain({.what = "value of '" + at.key + "' cannot be used",
                .expected = "a list of two numbers",
                .found = shown(node),
                .where = at.where});
    }
    target.settings.add("adam_beta1", node.items[0], at, target.replace);
    target.settings.add("adam_beta2", node.items[1], at, target.replace);
    return;
  }
  Location known = at;
  if (node.kind == Node::Kind::scalar) known.written = node.text;
  target.settings.add(entry.key, respelt(entry, node), known, target.replace);
}

void walk(const Node& node, const std::string& path, const std::string& name, const Target& target,
          bool weak_pass) {
  for (const auto& [key, value] : node.members) {
    const std::string full = path.empty() ? key : path + "." + key;
    const Location at{place(name, value.line), full};
    // verl has a section `optim`, where Hugging Face has a word.
    const bool foreign_section = value.kind == Node::Kind::map && is_section(full);
    if (path.empty() && find_field(key) != nullptr && !foreign_section) {
      if (!weak_pass) target.settings.add(key, value, at, target.replace);
    } else if (const Entry* entry = find_entry(full)) {
      const bool weak = entry->action == Action::weak || entry->action == Action::rank;
      if (weak == weak_pass) apply(*entry, value, at, target);
    } else if (is_section(full) && (value.kind == Node::Kind::map || value.is_null())) {
      walk(value, full, name, target, weak_pass);
    } else {
      unknown_key(full, at.where, known_names());
    }
  }
}

}  // namespace

void unknown_key(const std::string& key, const std::string& where, const Strings& known) {
  const std::string near = nearest_name(key, known);
  complain(
      {.what = "unknown key '" + key + "'",
       .where = where,
       .fix = near.empty() ? "remove it; 'trainer --help' lists the keys" : "did you mean '" + near + "'?"});
}

std::vector<ForeignKey> dialect_keys() {
  std::vector<ForeignKey> keys;
  for (const Entry& entry : kEntries) {
    const bool maps = entry.action != Action::note && entry.action != Action::refuse;
    keys.push_back({std::string(entry.path), maps ? entry.key : "", maps ? "" : entry.key});
  }
  return keys;
}

void translate_tree(const Node& tree, const std::string& name, Settings& settings, Sources& sources) {
  const Target target{.settings = settings, .sources = sources, .replace = false};
  walk(tree, "", name, target, false);
  walk(tree, "", name, target, true);
}

void translate_argument(const std::string& path, const Node& node, Sources& sources) {
  const Target target{.settings = sources.overrides, .sources = sources, .replace = true};
  const Location at{"command line", path};
  sources.argued.insert(path);
  if (find_field(path) != nullptr) {
    target.settings.add(path, node, at, true);
  } else if (const Entry* entry = find_entry(path)) {
    apply(*entry, node, at, target);
  } else {
    unknown_key(path, at.where, known_names());
  }
}

}  // namespace octet::config
