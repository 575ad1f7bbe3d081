#include "generate/vllm_words.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace octet::cli {
namespace {

std::string name_of(const std::string& word) {
  std::string name = word.substr(0, word.find('='));
  std::ranges::replace(name, '_', '-');
  return name;
}

bool is_flag(const std::string& word) {
  const std::string name = name_of(word);
  return name == "--trust-remote-code" || name == "--enforce-eager";
}

bool is_bool(std::string word) {
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::array kWords{"true", "false", "1", "0", "yes", "no"};
  return std::ranges::find(kWords, word) != kWords.end();
}

std::string our_dtype(const std::string& word) {
  if (word == "float32") return "fp32";
  return word == "bfloat16" ? "bf16" : word;
}

}  // namespace

Arguments without_vllm_words(const Arguments& arguments) {
  Arguments words;
  std::string model;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool more = i + 1 < arguments.size();
    const std::size_t equals = word.find('=');
    if (name_of(word) == "--model" && (equals != std::string::npos || more)) {
      model = equals != std::string::npos ? word.substr(equals + 1) : arguments[++i];
    } else if (is_flag(word) && equals == std::string::npos && more && is_bool(arguments[i + 1])) {
      words.push_back(word + "=" + arguments[++i]);
    } else if (name_of(word) == "--dtype" && (equals != std::string::npos || more)) {
      words.push_back("--dtype=" +
                      our_dtype(equals != std::string::npos ? word.substr(equals + 1) : arguments[++i]));
    } else {
      words.push_back(word);
    }
  }
  if (!model.empty()) words.insert(words.begin(), model);
  return words;
}

}  // namespace octet::cli
