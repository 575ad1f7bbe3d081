#pragma once

#include <algorithm>

#include "command.h"

namespace octet::cli {

/// Overrides for a model that comes without a configuration: bf16 unless they say otherwise. Before they are
/// loaded, since other keys are allowed with bf16 alone.
inline Arguments with_bf16(Arguments words) {
  const auto decides = [](const std::string& word) {
    const std::size_t begin = std::min(word.find_first_not_of('-'), word.size());
    const std::string key = word.substr(begin, word.find('=') - begin);
    return key == "bf16" || key == "pure_bf16";
  };
  if (std::ranges::none_of(words, decides)) words.push_back("bf16=true");
  return words;
}

}  // namespace octet::cli
