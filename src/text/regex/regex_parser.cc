#include "regex/regex_parser.h"
#include "tokenizer/component.h"

#include <algorithm>
#include <optional>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "unicode/scripts.h"
#include "unicode/utf8.h"

namespace octet::text {
namespace {

constexpr int kMostGroups = 64;
constexpr int kMaxRepeat = 1000;

struct Flags {
  bool caseless = false;
  bool dot_all = false;
};

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  RegexNode parse() {
    Flags flags;
    RegexNode node = alternation(flags, 0);
    if (at_ < pattern_.size()) fail("an unmatched ')'");
    return node;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error({.what = "the tokenizer's regular expression cannot be used: " + what,
                 .found = std::string(pattern_.substr(0, 200)),
                 .where = "byte " + std::to_string(at_) + " of the expression",
                 .fix = kBrokenPattern,
                 .code = ExitCode::usage});
  }

  bool more() const { return at_ < pattern_.size(); }
  bool take(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  std::uint32_t next_code() {
    const char* p = pattern_.data() + at_;
    at_ += utf8_length(static_cast<unsigned char>(*p));
    return utf8_at(p);
  }

  RegexNode alternation(const Flags& flags, int depth) {
    if (depth > kMostGroups) fail("groups nest too deeply");
    RegexNode out{.kind = RegexNode::Kind::alternate};
    do {
      out.parts.push_back(sequence(flags, depth));
    } while (take("|"));
    return out.parts.size() == 1 ? std::move(out.parts[0]) : out;
  }

  RegexNode sequence(const Flags& flags, int depth) {
    RegexNode out{.kind = RegexNode::Kind::concat};
    while (more() && pattern_[at_] != '|' && pattern_[at_] != ')') {
      out.parts.push_back(repeated(atom(flags, depth)));
    }
    return out;
  }

  RegexNode atom(const Flags& flags, int depth) {
    if (take("(")) return group(flags, depth);
    if (pattern_[at_] == '[') return set_node(char_class(flags, depth));
    if (take(".")) return set_node(flags.dot_all ? Ranges{{0, kMaxCodePoint}} : complement({{'\n', '\n'}}));
    if (take("^")) return assertion(RegexAssertion::line_start);
    if (take("$")) return assertion(RegexAssertion::line_end);
    if (take("\\A")) return assertion(RegexAssertion::text_start);
    if (take("\\z")) return assertion(RegexAssertion::text_end);
    if (take("\\Z")) return assertion(RegexAssertion::text_end_or_last_newline);
    if (take("\\b")) return assertion(RegexAssertion::word_edge);
    if (take("\\B")) return assertion(RegexAssertion::no_word_edge);
    if (pattern_[at_] == '\\') {
      const Ranges set = escape();
      return set_node(flags.caseless ? close_under_case(set) : set);
    }
    if (pattern_[at_] == '*' || pattern_[at_] == '+' || pattern_[at_] == '?') fail("nothing to repeat");
    const std::uint32_t code = next_code();
    const Ranges set{{code, code}};
    return set_node(flags.caseless ? close_under_case(set) : set);
  }

  RegexNode group(const Flags& flags, int depth) {
    RegexNode out{.kind = RegexNode::Kind::concat};
    Flags inner = flags;
    if (take("?:")) {
    } else if (take("?=")) {
      out = {.kind = RegexNode::Kind::look};
    } else if (take("?!")) {
      out = {.kind = RegexNode::Kind::look, .negated = true};
    } else if (take("?<=")) {
      out = {.kind = RegexNode::Kind::look, .behind = true};
    } else if (take("?<!")) {
      out = {.kind = RegexNode::Kind::look, .negated = true, .behind = true};
    } else if (take("?>")) {
      out = {.kind = RegexNode::Kind::atomic};
    } else if (take("?")) {
      bool on = true;
      for (;; ++at_) {
        if (!more()) fail("a group is not closed");
        const char c = pattern_[at_];
        if (c == '-') {
          on = false;
        } else if (c == 'i') {
          inner.caseless = on;
        } else if (c == 'm') {
          inner.dot_all = on;
        } else {
          break;
        }
      }
      // Without a body, it applies to the rest of the enclosing group, including alternatives.
      if (take(")")) return alternation(inner, depth + 1);
      if (!take(":")) fail("a kind of group that is not supported");
    }
    out.parts.push_back(alternation(inner, depth + 1));
    if (!take(")")) fail("a group is not closed");
    return out;
  }

  RegexNode repeated(RegexNode atom) {
    for (;;) {
      RegexNode out{.kind = RegexNode::Kind::repeat};
      bool counted = false;
      if (take("*")) {
      } else if (take("+")) {
        out.min = 1;
      } else if (take("?")) {
        out.max = 1;
      } else if (count(out)) {
        counted = true;
      } else {
        return atom;
      }
      // In Ruby's syntax `{n}?` is an optional group and `{n,m}+` a repeated one.
      if (!(counted && out.min == out.max) && take("?")) out.greed = RegexGreed::lazy;
      if (!counted && out.greed == RegexGreed::greedy && take("+")) out.greed = RegexGreed::possessive;
      if (atom.kind == RegexNode::Kind::assertion || atom.kind == RegexNode::Kind::look) {
        fail("an assertion cannot be repeated");
      }
      out.parts.push_back(std::move(atom));
      atom = std::move(out);
      if (++repeats_ > 1000) fail("too many repetitions");
    }
  }

  /// Reads {n}, {n,}, {,m} or {n,m}. Any other brace is a literal.
  bool count(RegexNode& out) {
    const std::size_t before = at_;
    if (!take("{")) return false;
    const auto number = [&](int fallback) {
      if (!more() || pattern_[at_] < '0' || pattern_[at_] > '9') return fallback;
      int value = 0;
      while (more() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
        value = value * 10 + (pattern_[at_++] - '0');
        if (value > kMaxRepeat) fail("a repetition above " + std::to_string(kMaxRepeat));
      }
      return value;
    };
    const int low = number(-1);
    int high = low;
    if (take(",")) high = number(-1);
    if (!take("}") || (low < 0 && high < 0)) {
      at_ = before;
      return false;
    }
    out.min = std::max(low, 0);
    out.max = high;
    if (high >= 0 && high < out.min) fail("a repetition with a lower bound above its upper bound");
    return true;
  }

  Ranges char_class(const Flags& flags, int depth) {
    if (depth > kMostGroups) fail("classes nest too deeply");
    ++at_;  // the bracket
    const bool negated = take("^");
    Ranges all{{0, kMaxCodePoint}}, current;
    bool first = true, intersected = false;
    for (;; first = false) {
      if (!more()) fail("a class is not closed");
      if (pattern_[at_] == ']' && !first) break;
      if (take("&&")) {
        all = intersect(all, finish(std::move(current), flags));
        current.clear();
        intersected = true;
        continue;
      }
      if (pattern_.substr(at_, 2) == "[:") fail("POSIX brackets are not supported");
      if (pattern_[at_] == '[') {
        for (const auto& range : char_class(flags, depth + 1)) current.push_back(range);
        continue;
      }
      const Ranges item = class_item();
      const bool single = item.size() == 1 && item[0].first == item[0].second;
      if (single && pattern_.substr(at_, 1) == "-" && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        ++at_;
        if (pattern_[at_] == '[') fail("a range that ends in a class");
        const Ranges end = class_item();
        if (end.size() != 1 || end[0].first != end[0].second || end[0].first < item[0].first) {
          fail("a range with ends that are not characters, or in the wrong order");
        }
        current.emplace_back(item[0].first, end[0].first);
      } else {
        current.insert(current.end(), item.begin(), item.end());
      }
    }
    ++at_;
    current = finish(std::move(current), flags);
    if (intersected) current = intersect(all, current);
    return negated ? complement(current) : current;
  }

  Ranges finish(Ranges set, const Flags& flags) {
    normalise_ranges(set);
    return flags.caseless ? close_under_case(set) : set;
  }

  static Ranges intersect(const Ranges& a, const Ranges& b) {
    Ranges outside = complement(a);
    for (const auto& range : complement(b)) outside.push_back(range);
    normalise_ranges(outside);
    return complement(outside);
  }

  Ranges class_item() {
    if (!more()) fail("a class is not closed");
    if (pattern_[at_] == '\\') return escape();
    const std::uint32_t code = next_code();
    return {{code, code}};
  }

  std::uint32_t hex(std::size_t digits) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i, ++at_) {
      const char c = more() ? pattern_[at_] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("a broken hexadecimal escape");
      value = value * 16 + static_cast<std::uint32_t>(digit);
    }
    if (value > kMaxCodePoint) fail("an escape above U+10FFFF");
    return value;
  }

  Ranges escape() {
    ++at_;  // the backslash
    if (!more()) fail("a backslash at the end");
    const std::uint32_t code = next_code();
    const auto one = [](std::uint32_t c) { return Ranges{{c, c}}; };
    switch (code) {
      case 's':
        return white_space();
      case 'S':
        return complement(white_space());
      case 'd':
        return category_ranges(category_mask("Nd"));
      case 'D':
        return complement(category_ranges(category_mask("Nd")));
      case 'w':
        return regex_word_characters();
      case 'W':
        return complement(regex_word_characters());
      case 'h':
        return {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
      case 'H':
        return complement({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
      case 'p':
        return property(false);
      case 'P':
        return property(true);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'a':
        return one('\a');
      case 'e':
        return one(0x1B);
      case 'u':
        return one(hex(4));
      case 'x': {
        if (!take("{")) return one(hex(2));
        const std::size_t close = pattern_.find('}', at_);
        if (close == std::string_view::npos || close == at_ || close - at_ > 6) fail("a broken escape");
        const std::uint32_t value = hex(close - at_);
        ++at_;
        return one(value);
      }
      default:
        if ((code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z')) {
          fail(std::string("the escape \\") + static_cast<char>(code) + " is not supported");
        }
        return one(code);
    }
  }

  Ranges property(bool negated) {
    if (!take("{")) fail("a property without braces");
    if (take("^")) negated = !negated;
    const std::size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) fail("a property without a closing brace");
    const std::string_view name = pattern_.substr(at_, close - at_);
    const std::optional<Ranges> set = property_ranges(name);
    if (!set) fail("the property '" + std::string(name) + "' is neither a general category nor a script");
    at_ = close + 1;
    return negated ? complement(*set) : *set;
  }

  Ranges close_under_case(Ranges set) {
    if (!close_under_ascii_case(set)) fail("caseless matching of letters beyond ASCII is not supported");
    return set;
  }

  static RegexNode set_node(Ranges set) {
    normalise_ranges(set);
    return {.kind = RegexNode::Kind::set, .set = std::move(set)};
  }
  static RegexNode assertion(RegexAssertion kind) {
    return {.kind = RegexNode::Kind::assertion, .assertion = kind};
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  int repeats_ = 0;
};

}  // namespace

RegexNode parse_regex(std::string_view pattern) {
  if (!is_utf8(pattern)) {
    throw Error({.what = "the tokenizer's regular expression is not UTF-8",
                 .expected = "UTF-8",
                 .found = "bytes of another encoding",
                 .fix = kBrokenPattern,
                 .code = ExitCode::usage});
  }
  return Parser(pattern).parse();
}

}  // namespace octet::text
