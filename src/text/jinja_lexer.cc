#include "jinja_lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "jinja_tree.h"

namespace octet::text::jinja {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}
bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

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

  std::size_t next_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return source_.size();
  }

  // What stands before the tag at `tag`, less the white space that this tag and the one before take away.
  void text(std::size_t tag) {
    std::string_view out = source_.substr(at_, tag - at_);
    if (strips_) {
      while (!out.empty() && is_blank(out.front())) out.remove_prefix(1);
    } else if (trims_) {
      if (out.starts_with("\r\n")) {
        out.remove_prefix(2);
      } else if (out.starts_with('\n')) {
        out.remove_prefix(1);
      }
    }
    if (tag < source_.size() && at(tag + 2) == '-') {
      while (!out.empty() && is_blank(out.back())) out.remove_suffix(1);
    } else if (tag < source_.size() && source_[tag + 1] != '{' && at(tag + 2) != '+') {
      // lstrip_blocks: blanks between the line's beginning and a block or comment.
      std::size_t begin = tag;
      while (begin > at_ && (source_[begin - 1] == ' ' || source_[begin - 1] == '\t')) --begin;
      const bool line_begins = begin == 0 || source_[begin - 1] == '\n';
      if (line_begins) out.remove_suffix(std::min(out.size(), tag - begin));
    }
    if (!out.empty()) add(Token::Kind::text, std::string(out));
    advance(tag);
  }

  // A tag's end: which white space goes behind it.
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
      while (at_ < source_.size() && is_blank(source_[at_])) advance(at_ + 1);
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

  // {% raw %} … {% endraw %}: text as it stands.
  bool raw(std::size_t from) {
    const auto tag_from = [&](std::size_t i, std::string_view word, std::size_t& behind, bool& dash) {
      while (is_blank(at(i))) ++i;
      if (!source_.substr(std::min(i, source_.size())).starts_with(word)) return false;
      i += word.size();
      while (is_blank(at(i))) ++i;
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
      if (dash) text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t\r\n")));
      if (strips) text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
      if (!text.empty()) add(Token::Kind::text, std::string(text));
      close(dash_behind, false, false, behind);
      return true;
    }
    fail(line_, "'raw' does not end");
  }

  // One token inside a tag; by how much it opens or closes brackets.
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
      const char next = at(++i);
      switch (next) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case '\\':
        case '\'':
        case '"':
          out += next;
          break;
        case '\n':
          break;
        case 'u':
        case 'x':
        case 'U':
          fail(line_, "escapes of code points are not known here");
        default:
          out += '\\', out += next;
      }
    }
    if (i >= source_.size()) fail(line_, "a text in quotes does not end");
    add(Token::Kind::string, std::move(out));
    return i + 1;
  }

  int sign() {
    static constexpr std::array<std::string_view, 7> kTwo{"==", "!=", "<=", ">=", "//", "**", "->"};
    const std::string_view two = source_.substr(at_, 2);
    const bool long_one = std::ranges::find(kTwo, two) != kTwo.end();
    const char c = source_[at_];
    if (!long_one && std::string_view("()[]{}.,:|~+-*/%<>=").find(c) == std::string_view::npos) {
      fail(line_, "'" + std::string(1, c) + "' is not known here");
    }
    add(Token::Kind::sign, std::string(long_one ? two : two.substr(0, 1)));
    advance(at_ + (long_one ? 2 : 1));
    if (c == '(' || c == '[' || c == '{') return 1;
    return c == ')' || c == ']' || c == '}' ? -1 : 0;
  }

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
