// A {"String": ...} or {"Regex": ...} of a tokenizer file: the pattern of Split and Replace.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "octet/base/json_fwd.h"
#include "regex/regex.h"

namespace octet::text {

class Pattern {
 public:
  /// `where` names the file and component for messages. Throws Error.
  Pattern(const Json& json, const std::string& where);
  static Pattern regex(std::string_view expression);

  /// Calls `found(begin, end)` for each match in `text`, left to right.
  template <class Found>
  void each_match(std::string_view text, Found&& found) const {
    std::size_t begin = 0, end = 0;
    if (regex_) {
      RegexFinder finder(*regex_, text);
      while (finder.next(begin, end)) found(begin, end);
    } else if (!literal_.empty()) {
      while ((begin = text.find(literal_, end)) != std::string_view::npos) {
        end = begin + literal_.size();
        found(begin, end);
      }
    }
  }

 private:
  Pattern() = default;
  std::shared_ptr<const Regex> regex_;
  std::string literal_;
};

}  // namespace octet::text
