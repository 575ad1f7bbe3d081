// The files of a data set.
#pragma once

#include <string>
#include <vector>

#include "octet/data/dataset.h"

namespace octet::data {

/// Returns a file itself, or the files of the chosen split of a folder (splits.h). `name` is its name in the
/// configuration.
std::vector<std::string> files_of_path(const std::string& path, const std::string& name,
                                       const DataOptions& options);

/// Returns the files that a shell pattern matches, sorted by name. Files that only describe rows are left
/// out.
std::vector<std::string> expand_glob(const std::string& pattern);

/// Whether a name means a file, a folder or a pattern rather than an entry of dataset_info.json.
bool looks_like_path(const std::string& name);

/// Returns the files of an entry of dataset_info.json: its file, or the files of its split in its folder
/// (below `folder` and `subset`). `file` is its file_name, `where` names the entry in messages.
std::vector<std::string> files_of_entry(const Json& entry, const std::string& name, const std::string& file,
                                        const std::string& where, const DataOptions& options);

}  // namespace octet::data
