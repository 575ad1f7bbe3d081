#include "jinja/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "jinja/jinja_tree.h"
#include "jinja/python_text.h"
#include "unicode/utf8.h"

namespace octet::text::jinja {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

/// Replaces every line end by "\n", like jinja2.
std::string with_plain_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(with_plain_lines(source)), source_(text_) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag();
      text(tag);
      if (tag == source_.size()) break;
      at_ = tag;
      open(source_[tag + 1]);
    }
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  char at(std::size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  std::size_t behind_blanks(std::size_t from) const {
    const std::string_view rest = source_.substr(std::min(from, source_.size()));
    return source_.size() - python::strip(rest, true, false).size();
  }

  std::size_t next_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return source_.size();
  }

  // Adds the text before the tag at `tag`, without the white space that this tag and the previous one remove.
  void text(std::size_t tag) {
    std::string_view out = source_.substr(at_, tag - at_);
    if (strips_) {
      out = python::strip(out, true, false);
    } else if (trims_ && out.starts_with('\n')) {
      out.remove_prefix(1);
    }
    if (tag < source_.size() && at(tag + 2) == '-') {
      out = python::strip(out, false, true);
    } else if (tag < source_.size() && source_[tag + 1] != '{' && at(tag + 2) != '+') {
      // lstrip_blocks removes the blanks between the begin of a line and a block or comment.
      const std::size_t line = source_.substr(0, tag).rfind('\n') + 1;  // npos + 1 is the begin of the source
      const bool whole_line = line >= at_;
      if (whole_line && python::strip(source_.substr(line, tag - line)).empty())
        out.remove_suffix(std::min(out.size(), tag - line));
    }
    if (!out.empty()) add(Token::Kind::text, std::string(out));
    advance(tag);
  }

  // Ends a tag at `behind`, and records which white space is removed after it.
  void close(bool dash, bool plus, bool prints, std::size_t behind) {
    strips_ = dash;
    trims_ = !plus && !prints;
    advance(behind);
  }

  void open(char kind) {
    std::size_t i = at_ + 2;
    if (at(i) == '-' || at(i) == '+') ++i;
    if (kind == '#') return comment(i);
    if (kind == '%' && raw(i)) return;
    const bool prints = kind == '{';
    add(prints ? Token::Kind::print_begin : Token::Kind::tag_begin, "");
    advance(i);
    const std::string_view end = prints ? "}}" : "%}";
    int nested = 0;  // brackets: {{ {"a": {}} }}
    for (;;) {
      advance(behind_blanks(at_));
      if (at_ >= source_.size()) fail(line_, "a tag does not end");
      const bool marked = (at(at_) == '-' || at(at_) == '+') && source_.substr(at_ + 1).starts_with(end);
      if (nested == 0 && (marked || source_.substr(at_).starts_with(end))) {
        add(prints ? Token::Kind::print_end : Token::Kind::tag_end, "");
        return close(marked && at(at_) == '-', marked && at(at_) == '+', prints, at_ + (marked ? 3 : 2));
      }
      nested += word();
    }
  }

  void comment(std::size_t from) {
    const std::size_t end = source_.find("#}", from);
    if (end == std::string_view::npos) fail(line_, "a comment does not end");
    const char mark = end > from ? source_[end - 1] : '\0';
    close(mark == '-', mark == '+', false, end + 2);
  }

  // Adds the text between {% raw %} and {% endraw %} unchanged.
  bool raw(std::size_t from) {
    const auto tag_from = [&](std::size_t i, std::string_view word, std::size_t& behind, bool& dash) {
      i = behind_blanks(i);
      if (!source_.substr(i).starts_with(word)) return false;
      i = behind_blanks(i + word.size());
      dash = at(i) == '-';
      if (dash) ++i;
      behind = i + 2;
      return source_.substr(std::min(i, source_.size())).starts_with("%}");
    };
    std::size_t begin = 0;
    bool dash = false;
    if (!tag_from(from, "raw", begin, dash)) return false;
    for (std::size_t i = source_.find("{%", begin); i != std::string_view::npos;
         i = source_.find("{%", i + 2)) {
      std::size_t behind = 0;
      const bool strips = at(i + 2) == '-';
      bool dash_behind = false;
      if (!tag_from(i + 2 + (strips ? 1 : 0), "endraw", behind, dash_behind)) continue;
      std::string_view text = source_.substr(begin, i - begin);
      text = python::strip(text, dash, strips);
      if (!text.empty()) add(Token::Kind::text, std::string(text));
      close(dash_behind, false, false, behind);
      return true;
    }
    fail(line_, "'raw' does not end");
  }

  // Reads one token inside a tag. Returns the change of the bracket depth.
  int word() {
    const char c = source_[at_];
    std::size_t i = at_;
    if (std::isdigit(static_cast<unsigned char>(c))) {
      while (std::isdigit(static_cast<unsigned char>(at(i))) || at(i) == '_') ++i;
      const bool real = at(i) == '.' && std::isdigit(static_cast<unsigned char>(at(i + 1)));
      if (real) {
        for (++i; std::isdigit(static_cast<unsigned char>(at(i)));) ++i;
      }
      std::string digits(source_.substr(at_, i - at_));
      std::erase(digits, '_');
      add(real ? Token::Kind::real : Token::Kind::integer, digits);
    } else if (is_word(c)) {
      while (is_word(at(i))) ++i;
      add(Token::Kind::name, std::string(source_.substr(at_, i - at_)));
    } else if (c == '"' || c == '\'') {
      i = quoted();
    } else {
      return sign();
    }
    advance(i);
    return 0;
  }

  std::size_t quoted() {
    const char quote = source_[at_];
    std::string out;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        out += source_[i];
        continue;
      }
      i = escape(i + 1, out);
    }
    if (i >= source_.size()) fail(line_, "a text in quotes does not end");
    add(Token::Kind::string, std::move(out));
    return i + 1;
  }

  // Appends the character of the escape at `i`, the position after the backslash, to `out`. Returns the
  // position of its last character.
  std::size_t escape(std::size_t i, std::string& out) {
    static constexpr std::string_view kNames = "nrtabfv\\'\"", kMeanings = "\n\r\t\a\b\f\v\\'\"";
    const char next = at(i);
    if (const std::size_t known = kNames.find(next); next != '\0' && known != std::string_view::npos) {
      out += kMeanings[known];
      return i;
    }
    const bool octal = next >= '0' && next <= '7';
    const std::size_t digits = next == 'x' ? 2 : next == 'u' ? 4 : next == 'U' ? 8 : 0;
    if (next == 'N') fail(line_, "escapes of characters by name are not supported");
    if (!octal && digits == 0) {
      if (next != '\n') (out += '\\') += next;
      return i;
    }
    const std::size_t begin = octal ? i : i + 1;
    std::size_t end = begin;
    const auto is_digit = [&](char c) {
      return octal ? c >= '0' && c <= '7' : std::isxdigit(static_cast<unsigned char>(c)) != 0;
    };
    while (end < begin + (octal ? 3 : digits) && is_digit(at(end))) ++end;
    if (!octal && end != begin + digits) fail(line_, "an escape of a code point is cut short");
    std::uint32_t code = 0;
    std::from_chars(source_.data() + begin, source_.data() + end, code, octal ? 8 : 16);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail(line_, "an escape is not a code point");
    utf8_append(out, code);
    return end - 1;
  }

  int sign() {
    static constexpr std::array<std::string_view, 7> kTwo{"==", "!=", "<=", ">=", "//", "**", "->"};
    const std::string_view two = source_.substr(at_, 2);
    const bool long_one = std::ranges::find(kTwo, two) != kTwo.end();
    const char c = source_[at_];
    if (!long_one && std::string_view("()[]{}.,:|~+-*/%<>=").find(c) == std::string_view::npos) {
      fail(line_, "'" + std::string(1, c) + "' is not supported");
    }
    add(Token::Kind::sign, std::string(long_one ? two : two.substr(0, 1)));
    advance(at_ + (long_one ? 2 : 1));
    if (c == '(' || c == '[' || c == '{') return 1;
    return c == ')' || c == ']' || c == '}' ? -1 : 0;
  }

  std::string text_;
  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool strips_ = false, trims_ = false;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> cut(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace octet::text::jinja
