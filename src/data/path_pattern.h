// Patterns of paths, as Hugging Face's libraries and fsspec read them, and the files of a folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet::data {

/// Returns true if `path` matches `pattern`. `*` and `?` match inside one folder, `**` also across folders,
/// `[a-c]` matches one of these characters and `[!a-c]` matches any other character. "**/a" also matches "a".
bool matches_path(std::string_view pattern, std::string_view path);

/// Returns the files below `folder`, in all subfolders, relative to it and sorted. Hidden files and hidden
/// folders are left out. Folders with names that begin with "__" are left out as well. Throws Error if a
/// folder cannot be read.
std::vector<std::string> files_below(const std::string& folder);

}  // namespace octet::data
