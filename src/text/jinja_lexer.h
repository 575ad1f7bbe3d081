// The pieces of a Jinja template: text between tags, and the words inside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet::text::jinja {

struct Token {
  enum class Kind {
    text,         ///< what stands between tags, white space as the tags ask for it
    print_begin,  ///< {{
    print_end,
    tag_begin,  ///< {%
    tag_end,
    name,
    integer,
    real,
    string,  ///< without quotes, escapes replaced
    sign,    ///< operators and brackets
    end
  };
  Kind kind = Kind::end;
  std::string text;
  int line = 1;
};

/// Ends with a token of kind end. Throws Error with the line for tags and texts that do not end.
std::vector<Token> cut(std::string_view source);

}  // namespace octet::text::jinja
