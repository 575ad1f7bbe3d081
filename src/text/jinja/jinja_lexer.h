// Tokens of a Jinja template: text between tags, and words inside tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet::text::jinja {

struct Token {
  enum class Kind {
    text,         ///< text between tags, with white space removed as the tags require
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

/// Splits a template into tokens; the last has kind end. Throws Error with the line for unterminated tags and
/// strings.
std::vector<Token> cut(std::string_view source);

}  // namespace octet::text::jinja
