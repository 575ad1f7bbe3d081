#include "octet/runtime/config_changes.h"

#include <algorithm>
#include <array>
#include <set>

#include "octet/base/files.h"
#include "octet/base/json.h"

namespace octet::runtime {
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
