#include "octet/base/shell.h"

#include <algorithm>
#include <cctype>

namespace octet {

std::string quoted_for_shell(std::string_view text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "%+,-./:=@_";
  const bool plain = !text.empty() && std::ranges::all_of(text, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != std::string_view::npos;
  });
  return plain ? std::string(text) : quoted_for_shell(text);
}

}  // namespace octet
