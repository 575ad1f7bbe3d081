// Loads a configuration: reads the sources from the strongest to the weakest, and merges them.
#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "dialects/dialects.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "settings.h"

namespace octet::config {
namespace {

struct Override {
  std::string path;
  Node node;
};

struct CommandLine {
  std::string file;
  std::vector<Override> overrides;
};

bool is_config_path(const std::string& text) {
  return text.ends_with(".yaml") || text.ends_with(".yml") || text.ends_with(".json");
}

std::string with_underscores(std::string key) {
  for (char& c : key) c = c == '-' ? '_' : c;
  return key;
}

void add_override(CommandLine& line, std::string path, const std::string& text) {
  // Hydra's "+key=value" adds a key and "++key=value" adds or changes it; here both set the key.
  path.erase(0, path.find_first_not_of('+'));
  if (path.empty()) {
    complain({.what = "an override has no key",
              .expected = "key=value",
              .found = "=" + text,
              .where = "command line",
              .fix = "write the key before '='"});
  }
  Node node =
      is_inline_deepspeed(path, text) ? scalar_node(text) : parse_argument(text, "command line: " + path);
  line.overrides.push_back({.path = std::move(path), .node = std::move(node)});
}

void name_file(CommandLine& line, const std::string& file) {
  if (!line.file.empty()) {
    complain({.what = "two configurations are given",
              .found = line.file + " and " + file,
              .where = "command line",
              .fix = "give one; overrides are written key=value"});
  }
  line.file = file;
}

// Accepts SFT-Play's ways to name the configuration: --config FILE of its scripts, and CONFIG=FILE of its
// Makefile. The Makefile also has DEEPSPEED_CONFIG=FILE.
std::optional<std::string> config_argument(const Strings& arguments, std::size_t& i) {
  const std::string& word = arguments[i];
  std::optional<std::string> file;
  if (word == "--config") {
    if (i + 1 < arguments.size()) file = arguments[++i];
  } else if (word.starts_with("--config=") || word.starts_with("CONFIG=")) {
    file = word.substr(word.find('=') + 1);
  } else {
    return std::nullopt;
  }
  if (!file || !is_config_path(*file)) {
    complain({.what = "'" + word + "' is not followed by a configuration",
              .expected = "a path ending in .yaml, .yml or .json",
              .found = file ? "'" + *file + "'" : "nothing after it",
              .where = "command line",
              .fix = "write the path: trainer train FILE"});
  }
  return file;
}

bool is_data_path(const std::string& word) {
  static constexpr std::string_view kEnds[] = {".csv",     ".tsv", ".jsonl", ".parquet", ".arrow",
                                               ".feather", ".txt", ".gz",    ".zst"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return word.ends_with(end); });
}

// Whether a word is a path with "=" in it, as folders of sweeps have: runs/lr=1e-5/config.yaml.
bool is_path_with_sign(const std::string& word) {
  return is_config_path(word) && word.find('=') != std::string::npos &&
         (word.find('/') < word.find('=') || path_exists(word));
}

CommandLine read_arguments(const Strings& arguments) {
  CommandLine line;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::size_t sign = word.find('=');
    if (const auto file = config_argument(arguments, i)) {
      name_file(line, *file);
    } else if (word.starts_with("--") && word.size() > 2) {
      if (sign != std::string::npos) {
        add_override(line, with_underscores(word.substr(2, sign - 2)), word.substr(sign + 1));
        continue;
      }
      const std::string key = with_underscores(word.substr(2));
      const Field* field = find_field(key);
      const bool flag = field != nullptr && field->kind == Kind::boolean;
      const bool more = i + 1 < arguments.size();
      if (flag && (!more || !read_bool(arguments[i + 1]))) {
        add_override(line, key, "true");
      } else if (more && !arguments[i + 1].starts_with("--")) {
        add_override(line, key, arguments[++i]);
      } else {
        if (field == nullptr) unknown_key(key, "command line", field_names());
        complain({.what = "'" + word + "' has no value",
                  .expected = word + " VALUE",
                  .where = "command line",
                  .fix = "add the value; 'trainer --help " + field->name + "' says more"});
      }
    } else if (word.starts_with("DEEPSPEED_CONFIG=")) {
      add_override(line, "deepspeed", word.substr(sign + 1));
    } else if (sign != std::string::npos && !is_path_with_sign(word)) {
      add_override(line, word.substr(0, sign), word.substr(sign + 1));
    } else if (is_config_path(word)) {
      name_file(line, word);
    } else if (word.ends_with(".toml")) {
      complain({.what = "a configuration in TOML, as torchtitan's are, is not read",
                .expected = "a path ending in .yaml, .yml or .json",
                .found = word,
                .where = "command line",
                .fix = "write model_name_or_path ([model] hf_assets_path), dataset, cutoff_len ([training] "
                       "seq_len), per_device_train_batch_size ([training] local_batch_size), max_steps "
                       "([training] steps), learning_rate ([optimizer] lr) and output_dir into a YAML file"});
    } else if (is_data_path(word)) {
      complain(
          {.what = "'" + word + "' is a data file, not a configuration",
           .expected = "a path ending in .yaml, .yml or .json, or key=value",
           .where = "command line",
           .fix = "to train on it, type: trainer train model_name_or_path=FOLDER dataset=" + word +
                  " output_dir=runs/first, where FOLDER has a model; the same keys can be written to a .yaml "
                  "file"});
    } else {
      complain({.what = "the argument '" + word + "' cannot be read",
                .expected = "a path ending in .yaml, .yml or .json, or key=value",
                .where = "command line",
                .fix = "remove it, or write it in one of these forms"});
    }
  }
  return line;
}

// "lr_scheduler_kwargs.min_lr=1e-6": sets the map of the strongest source so far, with one entry changed.
bool merge_into_map(const Override& change, const Node& tree, Sources& sources) {
  const std::size_t dot = change.path.find('.');
  if (dot == std::string::npos) return false;
  const std::string key = change.path.substr(0, dot);
  const Field* field = find_field(key);
  if (field == nullptr || field->kind != Kind::arguments) return false;
  Node map;
  map.kind = Node::Kind::map;
  if (const Setting* earlier = sources.overrides.find(field->name)) {
    for (const auto& [name, value] : earlier->value.arguments) {
      const auto* number = std::get_if<double>(&value);
      map.members.emplace_back(name,
                               scalar_node(number ? number_text(*number) : std::get<std::string>(value)));
    }
  } else if (const Node* node = tree.find(key); node != nullptr && node->kind == Node::Kind::map) {
    map = *node;
  }
  const std::string name = change.path.substr(dot + 1);
  std::erase_if(map.members, [&](const auto& member) { return member.first == name; });
  map.members.emplace_back(name, change.node);
  sources.overrides.add(field->name, map, {"command line", change.path}, true);
  return true;
}

// Keeps the last of several arguments for a key, at its position.
std::vector<Override> last_of_each(const std::vector<Override>& overrides) {
  std::vector<Override> last;
  for (auto change = overrides.rbegin(); change != overrides.rend(); ++change) {
    const bool later = std::ranges::find(last, change->path, &Override::path) != last.end();
    if (!later) last.push_back(*change);
  }
  std::ranges::reverse(last);
  return last;
}

/// Returns the file that `path` names in the folder of the configuration `file`, in the working folder, or in
/// a parent folder of the configuration; "" if there is none.
std::string find_beside(const std::string& path, const std::string& file, Resolved& resolved) {
  namespace fs = std::filesystem;
  const fs::path folder = file.empty() ? fs::path() : fs::weakly_canonical(file).parent_path();
  const std::string beside = (folder / path).string();
  if (folder.empty() || beside == path) return path_exists(path) ? path : "";
  const bool here = path_exists(path);
  if (path_exists(beside)) {
    const bool other = here && fs::weakly_canonical(path) != fs::weakly_canonical(beside);
    if (other)
      resolved.notes.push_back("'" + path + "' is read from the folder of the configuration: " + beside);
    return other || !here ? beside : path;
  }
  if (here) return path;
  for (fs::path up = folder; up.has_relative_path(); up = up.parent_path()) {
    const fs::path above = up.parent_path() / path;
    if (!path_exists(above.string())) continue;
    resolved.notes.push_back("'" + path + "' is read from " + above.string());
    return above.string();
  }
  return "";
}

/// Returns the advice for a missing DeepSpeed JSON. Usual file names contain the stage: ds_z3_config.json.
std::string mend_of_missing(const std::string& path) {
  const std::size_t name = path.rfind('/') + 1, at = path.find("_z", name);
  const std::size_t digit = at == std::string::npos ? at : at + 2;
  const bool known = digit < path.size() && path[digit] >= '0' && path[digit] <= '3';
  return "check the path, or remove 'deepspeed' and set zero_stage" +
         (known ? std::string(": ") + path[digit] : std::string());
}

void read_deepspeed(const Node& tree, const std::string& file, Sources& sources, Resolved& resolved) {
  const Setting* chosen = sources.overrides.find("deepspeed");
  if (chosen == nullptr) chosen = sources.yaml.find("deepspeed");
  if (chosen == nullptr) chosen = sources.environment.find("deepspeed");
  if (chosen != nullptr) {
    if (!chosen->value.given || chosen->value.text.empty()) return;
    const std::string text = chosen->value.text;
    if (is_inline_deepspeed("deepspeed", text)) {
      const std::string name = chosen->at.where + ": deepspeed";
      // JSON has quotes; flow maps of YAML may have none.
      const bool json = text.find('"') != std::string::npos;
      translate_deepspeed(json ? parse_json_node(text, name) : parse_argument(text, name), name, sources);
      return;
    }
    const std::string path = find_beside(text, file, resolved);
    if (path.empty()) {
      complain({.what = "the DeepSpeed JSON does not exist",
                .expected =
                    "a file, relative to the configuration, to one of its parent folders or to the working "
                    "folder; or the JSON itself, {…}",
                .found = text,
                .where = chosen->at.where,
                .fix = mend_of_missing(text)});
    }
    translate_deepspeed(parse_json_node(read_file(path), path), path, sources);
  } else if (const Node* map = tree.find("deepspeed"); map != nullptr && map->kind == Node::Kind::map) {
    translate_deepspeed(*map, file + ": deepspeed", sources);
    resolved.notes.push_back("DeepSpeed keys come from the map in " + file);
  }
}

// Throws Error if a DeepSpeed file and the YAML contradict each other, because the intended value is unknown.
void check_agreement(const Sources& sources) {
  for (const auto& [key, foreign] : sources.deepspeed.all()) {
    const Setting* own = sources.yaml.find(key);
    if (own == nullptr || sources.overrides.has(key)) continue;
    if (foreign.value.refusal && own->value.given) throw Error(*foreign.value.refusal);
    const std::string mine = own->value.given ? canonical(*own->field, own->value) : "null";
    const std::string theirs = canonical(*foreign.field, foreign.value);
    if (!own->value.given || mine == theirs) continue;
    // Offloading or bf16 in the file may be intended or left over from a template, so this is always an
    // error.
    complain({.what = "the YAML and the DeepSpeed JSON disagree on '" + key + "'",
              .found = mine + " (" + own->at.where + ") and " + theirs + " (" + foreign.at.where + ")",
              .where = own->at.where,
              .fix = "write \"auto\" in the JSON, or make them equal"});
  }
}

/// Returns the sources from the weakest to the strongest.
std::array<std::pair<Source, const Settings*>, 4> in_order(const Sources& sources) {
  return {{{Source::environment, &sources.environment},
           {Source::deepspeed, &sources.deepspeed},
           {Source::yaml, &sources.yaml},
           {Source::override_, &sources.overrides}}};
}

/// Throws Error for unsupported values that no stronger source replaces.
void require_supported(const Sources& sources) {
  std::map<std::string, const Setting*> strongest;
  for (const auto& [source, settings] : in_order(sources)) {
    for (const auto& [key, setting] : settings->all()) strongest[key] = &setting;
  }
  for (const auto& [key, setting] : strongest) {
    if (setting->value.refusal) throw Error(*setting->value.refusal);
  }
}

void merge(const Sources& sources, Resolved& resolved) {
  for (const auto& [source, settings] : in_order(sources)) {
    for (const auto& [key, setting] : settings->all()) {
      if (setting.field->status == Status::used) store(*setting.field, setting.value, resolved.config);
      if (setting.value.given) {
        resolved.origins[key] = {.source = source, .where = setting.at.where, .key = setting.at.key};
        if (setting.field->status != Status::used)
          resolved.extra[key] = canonical(*setting.field, setting.value);
      } else {
        resolved.origins.erase(key);
        resolved.extra.erase(key);
      }
    }
  }
  for (const auto& [key, text] : resolved.extra) {
    const Field* field = find_field(key);
    const std::string usual = field->kind == Kind::list ? "[" + field->fallback + "]" : field->fallback;
    if (field->status != Status::noted || text == usual || text == "{}") continue;
    resolved.notes.push_back("'" + key + ": " + text + "' changes nothing here: " + field->reason);
  }
}

Resolved resolve(Node tree, const std::string& file, const std::vector<Override>& overrides,
                 const LoadOptions& options) {
  Resolved resolved;
  resolved.path = file;
  Sources sources;
  expand_includes(tree, file);
  std::map<std::string, std::string> texts;
  for (const Override& change : overrides) texts[change.path] = change.node.text;
  interpolate(tree, texts, options.environment, file.empty() ? "command line" : file);
  Strings paths;
  for (const Override& change : overrides) paths.push_back(change.path);
  choose_dialect(tree, file.empty() ? "command line" : file, paths, sources);
  complete_bare_keys(tree, file, sources);
  Node plain = tree;
  // An inline DeepSpeed map is not a text value of the key.
  std::erase_if(plain.members, [](const auto& member) {
    return member.first == "deepspeed" && member.second.kind == Node::Kind::map;
  });
  std::vector<Override> changes = overrides;
  for (Override& change : changes) change.path = complete_bare_key(change.path, sources);
  for (Override change : last_of_each(changes)) {
    if (change.node.text.find("${") != std::string::npos) {
      Node wrapped = tree;
      wrapped.members.emplace_back("", change.node);
      std::map<std::string, std::string> others = texts;
      others.erase(change.path);
      interpolate(wrapped, others, options.environment, "command line");
      change.node = wrapped.members.back().second;
    }
    if (!merge_into_map(change, tree, sources)) translate_argument(change.path, change.node, sources, plain);
  }
  translate_tree(plain, file, sources.yaml, sources);
  translate_environment(options.environment, sources);
  read_deepspeed(tree, file, sources, resolved);
  take_back_keys(sources);
  settle_facts(sources);
  require_supported(sources);
  check_agreement(sources);
  merge(sources, resolved);
  for (const auto& note : sources.notes) resolved.notes.push_back(note);
  resolved.warnings = sources.warnings;
  if (sources.dialect != nullptr) resolved.dialect = sources.dialect->name;
  apply_rules(resolved, options);
  return resolved;
}

}  // namespace

Resolved load(const Strings& arguments, const LoadOptions& options) {
  const CommandLine line = read_arguments(arguments);
  Node tree;
  tree.kind = Node::Kind::map;
  if (!line.file.empty()) {
    if (!path_exists(line.file)) {
      complain({.what = "the configuration does not exist",
                .found = line.file,
                .where = "command line",
                .fix = "check the path; 'trainer quickstart FOLDER' writes a configuration to begin with"});
    }
    tree = read_tree(line.file);
  }
  return resolve(std::move(tree), line.file, line.overrides, options);
}

Resolved load_text(const std::string& yaml, const std::string& name, const Strings& overrides,
                   const LoadOptions& options) {
  const CommandLine line = read_arguments(overrides);
  if (!line.file.empty())
    complain({.what = "a second configuration is given",
              .found = line.file,
              .where = "command line",
              .fix = "give one; overrides are written key=value"});
  return resolve(parse_yaml(yaml, name), name, line.overrides, options);
}

}  // namespace octet::config
