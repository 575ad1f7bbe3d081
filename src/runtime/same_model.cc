#include "octet/runtime/same_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/model/architecture.h"

namespace octet::runtime {
namespace {

// Whether a file only sets how a tokenizer is used. It does not change the ids of a text.
bool is_setting(const std::string& name) {
  return name == "tokenizer_config.json" || name == "special_tokens_map.json" ||
         name.starts_with("chat_template");
}

std::string hash_of(const text::Tokenizer& tokenizer) {
  std::string words;
  for (const std::string& file : tokenizer.files()) {
    const std::string name = std::filesystem::path(file).filename().string();
    if (!is_setting(name)) words += name + "\n" + hash128_hex(read_file(file)) + "\n";
  }
  return hash128_hex(words);
}

// "rope theta 10000.0 -> 500000.0" for the first members that differ, down to the innermost.
void add_differences(const Json& before, const Json& now, const std::string& name, Json& found) {
  if (before == now) return;
  const Json pieces =
      before.is_structured() && before.type() == now.type() && before.size() == now.size() ? before : Json();
  if (pieces.is_null()) {
    found.push_back(name + " " + before.dump() + " -> " + now.dump());
    return;
  }
  for (const auto& [key, value] : pieces.items()) {
    const Json* other = now.is_object() ? (now.contains(key) ? &now.at(key) : nullptr)
                                        : &now.at(static_cast<std::size_t>(std::stoul(key)));
    add_differences(value, other ? *other : Json(), name.empty() ? key : name + "." + key, found);
  }
}

[[noreturn]] void refuse(const std::string& what, const std::string& found,
                         const checkpoint::Checkpoint& checkpoint, const std::string& folder) {
  throw Error({.what = what,
               .found = found,
               .where = checkpoint.path() + "; " + folder,
               .fix = "name the model that the run began with; or export the checkpoint with it and start a "
                      "new run from the exported weights",
               .code = ExitCode::usage});
}

}  // namespace

Json model_state(const model::Architecture& architecture, const text::Tokenizer& tokenizer) {
  return Json{{"facts", model::facts_of(architecture)}, {"tokenizer", hash_of(tokenizer)}};
}

bool trained_reward_model(const checkpoint::Checkpoint& checkpoint) {
  const Json state = checkpoint.state().value("model", Json());
  const Json facts = state.is_object() ? state.value("facts", Json()) : Json();
  return facts.is_object() && facts.value("scores", Json()) == Json(true);
}

void require_same_model(const checkpoint::Checkpoint& checkpoint, const model::Architecture& architecture,
                        const text::Tokenizer* tokenizer, const std::string& folder) {
  const Json state = checkpoint.state().value("model", Json());
  if (!state.is_object()) return;
  // Through text, as the checkpoint's went: numbers of one value are then of one kind.
  const Json now = Json::parse(model::facts_of(architecture).dump());
  Json differences = Json::array();
  add_differences(state.value("facts", Json()), now, "", differences);
  std::string list;
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < std::min(kShown, differences.size()); ++i)
    list += (i ? ", " : "") + differences[i].get<std::string>();
  if (differences.size() > kShown) list += " and " + std::to_string(differences.size() - kShown) + " more";
  if (!list.empty()) {
    refuse("the checkpoint is of another model: its weights would compute something else", list, checkpoint,
           folder);
  }
  if (tokenizer == nullptr) return;
  if (json_string(state, "tokenizer", "", checkpoint.path()) != hash_of(*tokenizer)) {
    refuse("the tokenizer differs from the tokenizer that the checkpoint's run trained with",
           "files of the tokenizer with other contents", checkpoint, folder);
  }
}

namespace {

/// Adds "eos_token_id 1 -> 2" for each key that differs, that only one of two objects has included.
void add_changes(const Json& before, const Json& now, const std::string& name, Json& found) {
  if (before == now) return;
  if (!before.is_object() || !now.is_object()) {
    found.push_back(name + " " + before.dump() + " -> " + now.dump());
    return;
  }
  std::set<std::string> keys;
  for (const Json* one : {&before, &now}) {
    for (const auto& [key, value] : one->items()) keys.insert(key);
  }
  const std::string prefix = name.empty() || name.ends_with(' ') ? name : name + ".";
  for (const std::string& key : keys)
    add_changes(before.value(key, Json()), now.value(key, Json()), prefix + key, found);
}

/// A value of a configuration with its long parts hashed.
Json shortened(const Json& value, bool outermost) {
  static constexpr std::array kNoMatter{"_name_or_path", "transformers_version", "architectures", "auto_map",
                                        "_commit_hash",  "torch_dtype",          "dtype"};
  constexpr std::size_t kLongest = 200;
  if (value.is_object()) {
    Json kept = Json::object();
    for (const auto& [key, one] : value.items()) {
      if (std::ranges::find(kNoMatter, key) == kNoMatter.end()) kept[key] = shortened(one, false);
    }
    if (outermost || kept.dump().size() <= 10 * kLongest) return kept;
    return "hash " + hash128_hex(kept.dump());
  }
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kLongest ? value : Json("hash " + hash128_hex(text));
}

/// The differences in one line, at most five of them.
std::string listed(const Json& differences) {
  std::string list;
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < std::min(kShown, differences.size()); ++i)
    list += (i ? ", " : "") + differences[i].get<std::string>();
  if (differences.size() > kShown) list += " and " + std::to_string(differences.size() - kShown) + " more";
  return list;
}

}  // namespace

Json config_state(const std::string& folder) {
  Json state = Json::object();
  for (const char* name : {"config.json", "generation_config.json"}) {
    const std::string path = folder + "/" + name;
    if (!path_exists(path)) continue;
    if (const Json config = read_json(path); config.is_object()) state[name] = shortened(config, true);
  }
  return state;
}

std::string config_changes(const Json& before, const Json& now) {
  if (!before.is_object()) return "";
  // Through text, as the checkpoint's went: numbers of one value are then of one kind.
  const Json after = Json::parse(now.dump());
  Json differences = Json::array();
  for (const char* name : {"config.json", "generation_config.json"})
    add_changes(before.value(name, Json()), after.value(name, Json()), std::string(name) + ": ", differences);
  return listed(differences);
}

}  // namespace octet::runtime
