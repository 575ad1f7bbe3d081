// Small models with results of Hugging Face transformers.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace octet::test {

/// Returns the folder of all golden models, with a slash at its end.
inline std::string golden_models_folder() {
  return OCTET_SOURCE_DIR "/tests/golden/models/";
}

/// Returns the names of the models with results of training (golden.json), in alphabetical order.
inline std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_models_folder())) {
    if (exists(entry.path() / "golden.json")) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace octet::test
