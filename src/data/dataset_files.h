// Which files a data set is made of.
#pragma once

#include <string>
#include <vector>

#include "octet/data/dataset.h"

namespace octet::data {

/// Files of a path: itself, or what a folder holds, by name. Throws Error for a folder that cannot be read.
std::vector<std::string> files_of(const std::string& path);

/// Files that a pattern of the shell matches, by name.
std::vector<std::string> expand_glob(const std::string& pattern);

/// Whether a name means a file, a folder or a pattern rather than an entry of dataset_info.json.
bool looks_like_path(const std::string& name);

/// Files of an entry: its file, or those of its folder (below `folder` and `subset`) that belong to its
/// split. `file` is its file_name, `where` names the entry in messages.
std::vector<std::string> files_of_entry(const Json& entry, const std::string& file, const std::string& where,
                                        const DataOptions& options);

}  // namespace octet::data
