#include "octet/text/whole_match.h"

#include <string>

#include "regex/regex.h"

namespace octet::text {

bool matches_whole(std::string_view expression, std::string_view text) {
  const Regex regex("\\A(?:" + std::string(expression) + ")\\z");
  RegexFinder finder(regex, text);
  std::size_t begin = 0, end = 0;
  return finder.next(begin, end);
}

}  // namespace octet::text
