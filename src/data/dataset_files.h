// The files of a data set: its card (README.md), and patterns of paths.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet::data {

// The files that the card of a data set (README.md) lists under the YAML key `configs`.

/// A split and the patterns of its files, relative to the folder of the card's configuration.
struct CardSplit {
  std::string name;
  std::vector<std::string> patterns;
};

/// One entry of `configs`.
struct CardConfig {
  std::string name = "default";
  std::string folder;               ///< data_dir; "": the folder of the card
  bool chosen = false;              ///< `default: true`
  std::vector<CardSplit> splits;    ///< data_files; empty: found by names of folders and files
  std::vector<std::string> others;  ///< keys that are not followed here, such as `sep`
};

/// Reads the configurations of README.md in `folder`. Returns nothing if there is no such file, or if it has
/// no `configs`. Throws Error (usage) if its YAML cannot be used.
std::vector<CardConfig> card_configs(const std::string& folder);

// Patterns of paths, as Hugging Face's libraries and fsspec read them, and the files of a folder.

/// Returns true if `path` matches `pattern`. `*` and `?` match inside one folder, `**` also across folders,
/// `[a-c]` matches one of these characters and `[!a-c]` matches any other character. "**/a" also matches "a".
bool matches_path(std::string_view pattern, std::string_view path);

/// Returns the files below `folder`, in all subfolders, relative to it and sorted. Hidden files and hidden
/// folders are left out. Folders with names that begin with "__" are left out as well. Throws Error if a
/// folder cannot be read.
std::vector<std::string> files_below(const std::string& folder);

}  // namespace octet::data
