// The files that the card of a data set (README.md) lists under the YAML key `configs`.
#pragma once

#include <string>
#include <vector>

namespace octet::data {

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

}  // namespace octet::data
