// The files and folders that a configuration names. launch/check-hosts looks for them on each host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"

namespace octet::launch {

/// A value of a key that names files or folders, a name on a hub, or a name of dataset_info.json.
struct NamedPath {
  std::string key, value;
};

/// Returns the values of these keys in a YAML text, in order. Splits lists and values with commas.
std::vector<NamedPath> named_paths(std::string_view yaml);

/// Returns the absolute paths of a configuration that exist on this host. Data sets are also looked for in
/// `dataset_dir` (by default "data"). Throws Error (usage) for a value that can only be a path and does not
/// exist. `tokenized_path` may be missing, and patterns (* and ?) are left out. A config of "" names nothing.
std::vector<std::string> existing_paths(const std::string& config, const Environment& environment);

}  // namespace octet::launch
