// Traverses a tree of native and foreign keys, and translates each.
#include "dialects/dialects.h"

#include <algorithm>
#include <vector>

#include "octet/base/strings.h"

namespace octet::config {
namespace {

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

bool asks_for_nothing(const Node& node, const char* harmless) {
  if (node.is_null()) return true;
  if (node.kind == Node::Kind::list) return node.items.empty();
  if (node.kind == Node::Kind::map) {
    return std::ranges::all_of(node.members,
                               [](const auto& member) { return asks_for_nothing(member.second, ""); });
  }
  const auto flag = read_bool(node.text);
  const auto number = read_number(node.text);
  return (flag && !*flag) || (number && *number == 0) || (*harmless != '\0' && node.text == harmless);
}

// Switches a key off, by its strategy or by null.
void switch_off(const std::string& key, const Location& at, const Target& target) {
  if (key == "save_steps") {
    target.settings.add("save_strategy", scalar_node("no"), at, target.replace);
  } else if (key == "eval_steps") {
    target.settings.add("eval_strategy", scalar_node("no"), at, target.replace);
  } else {
    target.settings.add(key, Node{}, at, target.replace);
  }
}

void keep_fact(const Entry& entry, const Node& node, const Location& at, const Target& target) {
  target.sources.facts[std::string(entry.path)] = {.node = node, .at = at, .override = target.replace};
}

void refuse(const Entry& entry, const Node& node, const Location& at) {
  if (asks_for_nothing(node, entry.words)) return;
  complain({.what = "'" + at.key + "' is not supported",
            .found = shown(node),
            .where = at.where,
            .fix = removal(entry.key)});
}

// Whether a weak key yields, because the source also sets `entry.key` itself.
bool gives_way(const Entry& entry, const Location& at, const Target& target) {
  const Setting* own = target.replace ? nullptr : target.settings.find(entry.key);
  if (own == nullptr || (own->at.included && !at.included)) return false;
  target.sources.note("'" + at.key + "' is overridden by '" + own->at.key + "'");
  return true;
}

void apply(const Entry& entry, const Node& node, const Location& at, const Target& target) {
  if (entry.action == Action::checked && !node.is_null()) return entry.handle(node, at, target);
  if (entry.action == Action::note || entry.action == Action::checked) {
    // A key without a value has no effect.
    if (node.is_null()) return;
    target.sources.note("'" + at.key + "' changes nothing here: " + entry.key);
    return;
  }
  if (entry.action == Action::refuse) return refuse(entry, node, at);
  if (entry.action == Action::fact) return keep_fact(entry, node, at, target);
  if (node.is_null()) return;
  if (entry.action == Action::weak && gives_way(entry, at, target)) return;
  if (entry.action == Action::minus_off) {
    const auto number = node.kind == Node::Kind::scalar ? read_number(node.text) : std::nullopt;
    // An interval on the command line wins over "never" in the file.
    if (number && *number < 0 && !target.replace && target.sources.overrides.has(entry.key)) return;
    if (number && *number < 0) return switch_off(entry.key, at, target);
  }
  if (entry.handle != nullptr) return entry.handle(node, at, target);
  Location known = at;
  if (node.kind == Node::Kind::scalar) known.written = node.text;
  target.settings.add(entry.key, respelt(entry, node), known, target.replace);
}

const Entry* find_entry(const std::string& path, const Sources& sources) {
  return sources.dialect == nullptr ? nullptr : sources.dialect->find(path);
}

bool is_section(const std::string& path, const Sources& sources) {
  return sources.dialect != nullptr && sources.dialect->is_section(path);
}

// Whether a key is ours although the dialect may have a key with the same name.
bool is_ours(const std::string& name, const Sources& sources) {
  if (find_field(name) == nullptr) return false;
  return find_entry(name, sources) == nullptr || !sources.dialect->before_ours;
}

// For the command line, in every dialect. In files, included keys have already replaced this key.
constexpr Entry kInclude{
    "include", Action::refuse,
    "write it into the configuration file, which then includes the keys of the other file"};

void walk(const Node& node, const std::string& path, const std::string& name, const Target& target,
          bool weak_pass) {
  for (const auto& [key, value] : node.members) {
    const std::string full = path.empty() ? key : path + "." + key;
    const bool included = !value.file.empty();
    const Location at{place(included ? value.file : name, value.line), full, "", included};
    // verl has a section `optim`; in Hugging Face it is a word.
    const bool foreign_section = value.kind == Node::Kind::map && is_section(full, target.sources);
    const Entry* entry = find_entry(full, target.sources);
    if (path.empty() && !foreign_section && is_ours(key, target.sources)) {
      if (!weak_pass) target.settings.add(key, value, at, target.replace);
    } else if (entry != nullptr) {
      if ((entry->action == Action::weak) == weak_pass) apply(*entry, value, at, target);
    } else if (is_section(full, target.sources) && (value.kind == Node::Kind::map || value.is_null())) {
      walk(value, full, name, target, weak_pass);
    } else {
      unknown_in(target.sources.dialect, full, at.where);
    }
  }
}

// Removes the key `path`, nested in sections or written with dots. Returns whether it was present.
bool drop_key(Node& node, const std::string& above, const std::string& path) {
  bool found = false;
  for (auto& [key, value] : node.members) {
    const std::string full = above.empty() ? key : above + "." + key;
    if (path.starts_with(full + ".")) found = drop_key(value, full, path) || found;
  }
  return std::erase_if(node.members,
                       [&](const auto& member) {
                         return (above.empty() ? member.first : above + "." + member.first) == path;
                       }) > 0 ||
         found;
}

}  // namespace

Node scalar_node(const std::string& text) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  return node;
}

namespace {

/// Words for keys in other programs, or that users guess, and the advice.
struct Guess {
  std::vector<std::string_view> words;
  const char* fix;
};

const std::vector<Guess>& guesses() {
  static const std::vector<Guess> all{
      {{"model", "model_path", "model_name", "base", "checkpoint", "pretrained"},
       "write model_name_or_path=FOLDER, the folder of the model"},
      {{"data", "data_path", "data_file", "dataset_path", "train_data", "train_file", "train_dataset"},
       "write dataset=FILE"},
      {{"eval_data", "eval_file", "val_data", "validation", "eval"},
       "write eval_dataset=FILE, or val_size=0.1 to hold out rows"},
      {{"lr", "rate"}, "write learning_rate=NUMBER"},
      {{"epoch", "epochs", "num_epochs", "n_epochs"}, "write num_train_epochs=NUMBER"},
      {{"steps", "iterations", "iters", "num_steps", "total_steps"}, "write max_steps=NUMBER"},
      {{"batch", "bs", "batchsize", "batch_size"},
       "write per_device_train_batch_size=NUMBER for each rank, or global_batch_size=NUMBER for all ranks "
       "together"},
      {{"accumulation", "accum", "grad_accum", "grad_acc"}, "write gradient_accumulation_steps=NUMBER"},
      {{"length", "max_len", "max_length", "max_tokens", "context", "context_length", "seq_len"},
       "write cutoff_len=NUMBER"},
      {{"out", "output", "output_path", "save_dir", "output_folder"}, "write output_dir=FOLDER"},
      {{"lora", "peft", "method"}, "write finetuning_type=lora, and quantization_bit=4 for QLoRA"},
      {{"qlora"}, "write finetuning_type=lora quantization_bit=4"},
      {{"rank", "r"}, "write lora_rank=NUMBER"},
      {{"alpha"}, "write lora_alpha=NUMBER"},
      {{"warmup"}, "write warmup_ratio=SHARE or warmup_steps=NUMBER"},
      {{"wd", "decay"}, "write weight_decay=NUMBER"},
      {{"scheduler", "schedule", "lr_scheduler"}, "write lr_scheduler_type=NAME"},
      {{"precision", "dtype"}, "write bf16=true or fp8=true"},
      {{"resume"}, "write resume_from_checkpoint=true, or name a checkpoint in it"},
      {{"gpus", "n_gpus", "num_gpus", "gpu", "nproc", "ranks"},
       "remove it, and start one rank for each GPU: launch/mpirun -np NUMBER trainer CONFIG"},
      {{"zero"}, "write zero_stage=NUMBER"},
      {{"name"}, "write run_name=NAME"},
      {{"bits", "quantization"}, "write quantization_bit=4"},
      {{"clip", "grad_clip", "gradient_clip"}, "write max_grad_norm=NUMBER"},
      {{"optimizer"}, "write optim=NAME"},
      {{"template_name", "chat_format", "prompt_template"}, "write template=NAME"},
      {{"tokenizer", "tokenizer_path"}, "remove it; the tokenizer is in the folder of model_name_or_path"},
      {{"samples", "max_rows", "num_rows"}, "write max_samples=NUMBER"},
      {{"dropout"}, "write lora_dropout=SHARE"},
      {{"save", "save_every"}, "write save_steps=NUMBER"},
      {{"log", "log_every"}, "write logging_steps=NUMBER"},
      {{"eval_every"}, "write eval_steps=NUMBER with eval_strategy=steps"},
  };
  return all;
}

}  // namespace

std::string guessed_key(std::string_view word) {
  for (const Guess& guess : guesses()) {
    if (std::ranges::find(guess.words, word) != guess.words.end()) return guess.fix;
  }
  return "";
}

std::string with_colons(std::string advice) {
  for (std::size_t at = 0; (at = advice.find('=', at)) != std::string::npos;) advice.replace(at, 1, ": ");
  return advice;
}

void unknown_key(const std::string& key, const std::string& where, const Strings& known) {
  if (std::string fix = guessed_key(key); !fix.empty()) {
    if (where != "command line") fix = with_colons(std::move(fix));
    complain({.what = "unknown key '" + key + "'", .where = where, .fix = fix});
  }
  const std::string near = nearest_name(key, known);
  complain({.what = "unknown key '" + key + "'",
            .where = where,
            .fix = near.empty() ? "remove it; 'trainer train --help' lists the keys"
                                : "did you mean '" + near + "'?"});
}

const Entry* Dialect::find(const std::string& path) const {
  const auto found = std::ranges::find(keys, path, &Entry::path);
  return found == keys.end() ? nullptr : &*found;
}

const Entry* Dialect::find_or_above(const std::string& path) const {
  const Entry* entry = find(path);
  for (std::size_t dot = path.rfind('.'); entry == nullptr && dot != std::string::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    const Entry* above = find(path.substr(0, dot));
    if (above != nullptr && (above->action == Action::note || above->action == Action::refuse)) entry = above;
  }
  return entry;
}

bool Dialect::is_section(const std::string& path) const {
  const std::string prefix = path + ".";
  return std::ranges::any_of(keys, [&](const Entry& entry) { return entry.path.starts_with(prefix); });
}

std::string Dialect::in_section(const std::string& word) const {
  if (word.find('.') != std::string::npos || find(word) != nullptr || find_field(word) != nullptr) return "";
  std::string only;
  for (const Entry& entry : keys) {
    if (!entry.path.ends_with("." + word)) continue;
    if (!only.empty()) return "";
    only = entry.path;
  }
  return only;
}

std::string complete_bare_key(const std::string& path, Sources& sources) {
  if (sources.dialect == nullptr || !sources.dialect->bare_keys) return path;
  const std::string full = sources.dialect->in_section(path);
  if (full.empty() || sources.dialect->is_section(path)) return path;
  sources.note("'" + path + "' is read as '" + full + "'");
  return full;
}

void complete_bare_keys(Node& tree, const std::string& name, Sources& sources) {
  for (std::size_t i = 0; i < tree.members.size(); ++i) {
    const std::string word = tree.members[i].first;
    const std::string full = complete_bare_key(word, sources);
    if (full == word) continue;
    const Node value = tree.members[i].second;
    tree.members[i].first = "";
    if (drop_key(tree, "", full)) {
      const std::string where = place(value.file.empty() ? name : value.file, value.line);
      complain({.what = "'" + full + "' is given twice",
                .found = "'" + word + "', which is read as '" + full + "', and '" + full + "' itself",
                .where = where,
                .fix = "keep one of the two"});
    }
    tree.members[i].first = full;
  }
}

const Entry* Dialect::find_for(const std::string& ours) const {
  const auto found = std::ranges::find_if(
      keys, [&](const Entry& entry) { return becomes_ours(entry) && entry.key == ours; });
  return found == keys.end() ? nullptr : &*found;
}

bool becomes_ours(const Entry& entry) {
  return entry.action != Action::note && entry.action != Action::refuse && entry.action != Action::checked;
}

std::vector<ForeignKey> dialect_keys(std::string_view trainer) {
  std::vector<ForeignKey> keys;
  for (const Dialect* dialect : kDialects) {
    if (!trainer.empty() && trainer != dialect->name) continue;
    for (const Entry& entry : dialect->keys) {
      const bool maps = becomes_ours(entry);
      keys.push_back({.path = std::string(entry.path),
                      .becomes = maps ? entry.key : "",
                      .reason = maps ? "" : entry.key,
                      .trainer = dialect->name});
    }
  }
  return keys;
}

void translate_tree(const Node& tree, const std::string& name, Settings& settings, Sources& sources) {
  const Target target{.settings = settings, .sources = sources, .replace = false};
  walk(tree, "", name, target, false);
  walk(tree, "", name, target, true);
}

void translate_argument(const std::string& path, const Node& node, Sources& sources, Node& file) {
  const Target target{.settings = sources.overrides, .sources = sources, .replace = true};
  const Location at{"command line", path};
  if (path == kInclude.path) return refuse(kInclude, node, at);
  if (is_ours(path, sources)) return target.settings.add(path, node, at, true);
  const Entry* entry = sources.dialect == nullptr ? nullptr : sources.dialect->find_or_above(path);
  if (entry == nullptr) unknown_in(sources.dialect, path, at.where);
  const bool in_file = drop_key(file, "", path);
  if (node.is_null()) sources.taken_back.push_back({.path = path, .in_file = in_file});
  apply(*entry, node, at, target);
}

// Removes the values of dialect keys that the command line sets to null. If the file has that very key, it is
// already removed. Otherwise the file's other key with the same meaning is removed. Weak keys stay.
void take_back_keys(Sources& sources) {
  for (const TakenBack& taken : sources.taken_back) {
    const Entry* entry = find_entry(taken.path, sources);
    const bool sets =
        entry != nullptr && (entry->action == Action::map || entry->action == Action::weak ||
                             entry->action == Action::minus_off || entry->action == Action::handled);
    if (!sets) continue;
    for (const auto& key : split(entry->key, ' ')) {
      sources.environment.drop(key);
      sources.deepspeed.drop(key);
      const Setting* own = taken.in_file ? nullptr : sources.yaml.find(key);
      const Entry* other = own == nullptr ? nullptr : find_entry(own->at.key, sources);
      if (own != nullptr && (other == nullptr || other->action != Action::weak)) sources.yaml.drop(key);
    }
  }
}

}  // namespace octet::config
