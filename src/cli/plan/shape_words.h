#pragma once

#include <algorithm>

#include "command.h"

namespace octet::cli {

/// Returns overrides for a model without a configuration: adds bf16=true unless bf16 or pure_bf16 is set.
/// This precedes loading, because other keys require bf16.
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
