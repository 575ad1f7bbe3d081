#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octet/data/encoded.h"

namespace octet::data {

/// All that decides what tokens come out, as names and values: the tokenizer's files, the template, options,
/// data files, their mixture.
using Recipe = std::vector<std::pair<std::string, std::string>>;

/// "bytes 123, changed 1700000000.5": what tells that a file is another one, without reading it. Throws Error
/// for a file that cannot be looked at.
std::string file_state(const std::string& path);

/// Tokenised data kept in a folder, in files named by a hash of their recipe, so that the folder serves many
/// runs: another tokenizer, template, option or data file is another name, never a stale one. A file appears
/// whole or not at all; any number of runs and ranks may use the folder at the same time.
class TokenCache {
 public:
  /// The folder is made when something is stored.
  explicit TokenCache(std::string folder) : folder_(std::move(folder)) {}

  static std::string key(const Recipe& recipe);
  std::string path(const Recipe& recipe) const { return folder_ + "/tokens-" + key(recipe) + ".bin"; }

  /// What was stored for a recipe; nothing when it is not there. `damaged`, if given, says that a file is
  /// there whose bytes are not those that were written.
  std::optional<Encoded> load(const Recipe& recipe, bool* damaged = nullptr) const;
  /// Throws Error when the folder or the file cannot be written.
  void store(const Recipe& recipe, const Encoded& set) const;

  /// Of the recipes in the folder the one nearest to `recipe`: what differs, a line each ("template: was
  /// 'qwen', is 'chatml'"). Empty when the folder holds nothing else.
  std::vector<std::string> nearest_differences(const Recipe& recipe) const;

 private:
  std::string folder_;
};

}  // namespace octet::data
