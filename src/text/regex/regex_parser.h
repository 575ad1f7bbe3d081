// The syntax tree of a regular expression of tokenizer files (Oniguruma's Ruby syntax).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/unicode.h"

namespace octet::text {

enum class RegexAssertion {
  text_start,
  text_end,
  text_end_or_last_newline,
  line_start,
  line_end,
  word_edge,
  no_word_edge
};
enum class RegexGreed { greedy, lazy, possessive };

struct RegexNode {
  enum class Kind { empty, set, concat, alternate, repeat, look, atomic, assertion };
  Kind kind = Kind::empty;
  Ranges set;                    ///< set: matches one character of these ranges
  std::vector<RegexNode> parts;  ///< concat, alternate: all; repeat, look, atomic: one
  int min = 0, max = -1;         ///< repeat; max -1 means no bound
  RegexGreed greed = RegexGreed::greedy;
  bool negated = false, behind = false;  ///< look
  RegexAssertion assertion = RegexAssertion::text_start;
};

/// Parses `pattern`. Supported: literals, escapes, classes with nesting, && and \p{…} with general
/// categories and scripts, \s \w \d \h, groups, (?i) and (?m), atomic groups, look-ahead, look-behind of
/// fixed length, greedy, lazy and possessive repetition, anchors. Throws Error with the name of an
/// unsupported feature (back references, other properties, caseless matching beyond ASCII letters) or with
/// the broken part.
RegexNode parse_regex(std::string_view pattern);

}  // namespace octet::text
