#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octet/data/encoded.h"

namespace octet::data {

/// All settings that affect the tokens, as names and values: the tokenizer's files, the template, options,
/// data files and their mixture.
using Recipe = std::vector<std::pair<std::string, std::string>>;

/// Returns the size and the modification time of a file: "bytes 123, changed 1700000000.500000000". They
/// detect a changed file without reading it. Throws Error if the file cannot be inspected.
std::string file_state(const std::string& path);

/// A folder of tokenised data. A file name contains a hash of its recipe, so many runs can share the folder.
/// A changed tokenizer, template, option or data file changes the name, so a file is never stale. Files are
/// written atomically. Any number of runs and ranks may use the folder concurrently.
class TokenCache {
 public:
  /// store() creates the folder.
  explicit TokenCache(std::string folder) : folder_(std::move(folder)) {}

  static std::string key(const Recipe& recipe);
  std::string path(const Recipe& recipe) const { return folder_ + "/tokens-" + key(recipe) + ".bin"; }

  /// Returns the stored data of a recipe, or nullopt. Sets *damaged, if given, to whether a file exists but
  /// its contents are corrupt.
  std::optional<Encoded> load(const Recipe& recipe, bool* damaged = nullptr) const;
  /// Throws Error if the folder or the file cannot be written.
  void store(const Recipe& recipe, const Encoded& set) const;

  /// Compares `recipe` with the most similar recipe in the folder. Returns one line per difference
  /// ("template: was 'qwen', is 'chatml'"). Returns an empty list if the folder has no other recipe.
  std::vector<std::string> nearest_differences(const Recipe& recipe) const;

 private:
  std::string folder_;
};

}  // namespace octet::data
