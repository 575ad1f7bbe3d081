// Parser of the expressions inside the tags of a Jinja template.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/jinja_lexer.h"
#include "jinja/jinja_tree.h"

namespace octet::text::jinja {

/// Parses expressions from the tokens of a template. The derived class parses statements. Each function
/// consumes the tokens of its construct, and throws Error with the line if it cannot parse them.
class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  static constexpr int kMostDepth = 100;

  // Bounds the recursion depth of the parser.
  struct Depth {
    explicit Depth(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMostDepth) fail(parser_.now().line, "nested too deeply");
    }
    ~Depth() { --parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    ExpressionParser& parser_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead(std::size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  Token take() {
    Token token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is(Token::Kind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool sign(std::string_view text) { return accept(Token::Kind::sign, text); }
  bool word(std::string_view text) { return accept(Token::Kind::name, text); }
  bool accept(Token::Kind kind, std::string_view text) {
    if (!is(kind, text)) return false;
    take();
    return true;
  }
  void need(std::string_view text) {
    if (!sign(text)) fail(now().line, "'" + std::string(text) + "' was expected, not '" + now().text + "'");
  }
  std::string need_name() {
    if (now().kind != Token::Kind::name) fail(now().line, "a name was expected, not '" + now().text + "'");
    return take().text;
  }
  void end_tag() {
    if (now().kind != Token::Kind::tag_end) fail(now().line, "'" + now().text + "' was not expected here");
    take();
  }

  std::unique_ptr<Expression> make(Expression::Kind kind, ExpressionPointer first = nullptr) const;
  ExpressionPointer binary(const std::string& word, ExpressionPointer left, ExpressionPointer right) const;
  // "a, b" and "a," are tuples.
  ExpressionPointer tuple(bool conditions = true);
  bool ends_tuple() const;
  ExpressionPointer expression();
  // a if b else c. Without `conditions`, the `if` belongs to the enclosing loop.
  ExpressionPointer either(bool conditions);
  ExpressionPointer any_of();
  ExpressionPointer all_of();
  ExpressionPointer negation();
  std::string comparison_sign();
  ExpressionPointer comparison();
  // The operators of one level; +, - and ~ bind less tightly than *, /, // and %.
  ExpressionPointer chain(std::size_t level);
  ExpressionPointer power();
  ExpressionPointer unary();
  ExpressionPointer filtered(ExpressionPointer out);
  // Whether an argument without brackets follows, as in `is divisibleby 3`.
  bool is_operand() const;
  Arguments arguments();
  // Parses .name, [index], [slice] and (arguments) after `out`.
  ExpressionPointer behind(ExpressionPointer out);
  ExpressionPointer index(ExpressionPointer of);
  ExpressionPointer literal(Value value) const;
  ExpressionPointer primary();
  ExpressionPointer number(const Token& token) const;
  ExpressionPointer list();
  ExpressionPointer dict();

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace octet::text::jinja
