#include "octet/base/hub_cache.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <utility>

#include "octet/base/environment.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"

namespace octet {
namespace {

bool is_word(const std::string& text) {
  return !text.empty() && text.front() != '.' && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

/// The folder of "owner/name" in the cache; "" if it is not a name on the hub.
std::string folder_of(HubKind kind, const std::string& name) {
  const std::size_t slash = name.find('/');
  const bool owned = slash != std::string::npos;
  if (!is_word(owned ? name.substr(0, slash) : name) || (owned && !is_word(name.substr(slash + 1))))
    return "";
  std::string folder = kind == HubKind::model ? "models--" : "datasets--";
  if (owned) folder += name.substr(0, slash) + "--";
  return folder + name.substr(owned ? slash + 1 : 0);
}

}  // namespace

std::string hub_folder(const VariableText& variable) {
  static constexpr std::array<std::pair<const char*, const char*>, 5> kPlaces{
      {{"HF_HUB_CACHE", ""},
       {"HUGGINGFACE_HUB_CACHE", ""},
       {"HF_HOME", "/hub"},
       {"XDG_CACHE_HOME", "/huggingface/hub"},
       {"HOME", "/.cache/huggingface/hub"}}};
  for (const auto& [name, below] : kPlaces) {
    if (const std::string set = variable(name); !set.empty()) return set + below;
  }
  return "";
}

std::string hub_folder() {
  return hub_folder([](const char* name) {
    const char* text = environment_variable(name);
    return std::string(text == nullptr ? "" : text);
  });
}

std::string hub_snapshot(const std::string& hub, HubKind kind, const std::string& name,
                         const std::string& revision) {
  const std::string folder = folder_of(kind, name);
  if (hub.empty() || folder.empty() || !is_word(revision)) return "";
  const std::string reference = hub + "/" + folder + "/refs/" + revision;
  const std::string commit =
      path_exists(reference) && !is_folder(reference) ? std::string(trim(read_file(reference))) : revision;
  if (!is_word(commit)) return "";
  std::string snapshot = hub + "/" + folder + "/snapshots/" + commit;
  return is_folder(snapshot) ? snapshot : "";
}

}  // namespace octet
