#include "octet/planner/shape_words.h"

#include <algorithm>

namespace octet::planner {

std::vector<std::string> with_bf16(std::vector<std::string> words) {
  const auto decides = [](const std::string& word) {
    const std::size_t begin = std::min(word.find_first_not_of('-'), word.size());
    const std::string key = word.substr(begin, word.find('=') - begin);
    return key == "bf16" || key == "pure_bf16";
  };
  if (std::ranges::none_of(words, decides)) words.push_back("bf16=true");
  return words;
}

}  // namespace octet::planner
