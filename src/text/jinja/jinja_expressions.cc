#include "jinja/jinja_expressions.h"

#include <array>
#include <charconv>

namespace octet::text::jinja {

using Kind = Expression::Kind;
using Words = std::vector<std::string_view>;

std::unique_ptr<Expression> ExpressionParser::make(Kind kind, ExpressionPointer first) const {
  auto out = std::make_unique<Expression>();
  out->kind = kind;
  out->line = now().line;
  if (first) out->items.push_back(std::move(first));
  return out;
}

ExpressionPointer ExpressionParser::binary(const std::string& word, ExpressionPointer left,
                                           ExpressionPointer right) const {
  auto out = make(Kind::binary, std::move(left));
  out->word = word;
  out->items.push_back(std::move(right));
  return out;
}

ExpressionPointer ExpressionParser::tuple(bool conditions) {
  ExpressionPointer first = either(conditions);
  if (!is(Token::Kind::sign, ",")) return first;
  auto out = make(Kind::tuple, std::move(first));
  while (sign(",") && !ends_tuple()) out->items.push_back(either(conditions));
  return out;
}

bool ExpressionParser::ends_tuple() const {
  return now().kind == Token::Kind::tag_end || now().kind == Token::Kind::print_end ||
         is(Token::Kind::sign, ")");
}

ExpressionPointer ExpressionParser::expression() {
  return either(true);
}

ExpressionPointer ExpressionParser::either(bool conditions) {
  const Depth depth(*this);
  ExpressionPointer out = any_of();
  while (conditions && word("if")) {
    auto choice = make(Kind::condition, std::move(out));
    choice->items.push_back(any_of());
    choice->items.push_back(word("else") ? expression() : nullptr);
    out = std::move(choice);
  }
  return out;
}

ExpressionPointer ExpressionParser::any_of() {
  ExpressionPointer out = all_of();
  while (word("or")) out = binary("or", std::move(out), all_of());
  return out;
}

ExpressionPointer ExpressionParser::all_of() {
  ExpressionPointer out = negation();
  while (word("and")) out = binary("and", std::move(out), negation());
  return out;
}

ExpressionPointer ExpressionParser::negation() {
  const Depth depth(*this);
  if (!word("not")) return comparison();
  return make(Kind::negation, negation());
}

std::string ExpressionParser::comparison_sign() {
  for (const char* text : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (sign(text)) return text;
  }
  if (word("in")) return "in";
  if (is(Token::Kind::name, "not") && ahead(1).kind == Token::Kind::name && ahead(1).text == "in") {
    take(), take();
    return "not in";
  }
  return "";
}

ExpressionPointer ExpressionParser::comparison() {
  ExpressionPointer out = chain(0);
  const std::string text = comparison_sign();
  if (text.empty()) return out;
  out = binary(text, std::move(out), chain(0));
  if (!comparison_sign().empty()) fail(now().line, "chains of comparisons are not supported");
  return out;
}

ExpressionPointer ExpressionParser::chain(std::size_t level) {
  static const std::array<Words, 3> kSigns{{{"~"}, {"+", "-"}, {"*", "/", "//", "%"}}};
  if (level == kSigns.size()) return power();
  ExpressionPointer out = chain(level + 1);
  for (;;) {
    const auto found =
        std::ranges::find_if(kSigns[level], [&](std::string_view s) { return is(Token::Kind::sign, s); });
    if (found == kSigns[level].end()) return out;
    take();
    out = binary(std::string(*found), std::move(out), chain(level + 1));
  }
}

// As in jinja2: ** is left-associative, and a sign binds tighter. -2 ** 2 is 4, and 2 ** 3 ** 2 is 64.
ExpressionPointer ExpressionParser::power() {
  const Depth depth(*this);
  ExpressionPointer out = filtered(unary());
  while (sign("**")) out = binary("**", std::move(out), filtered(unary()));
  return out;
}

// A sign binds tighter than filters.
ExpressionPointer ExpressionParser::unary() {
  const Depth depth(*this);
  if (sign("-")) {
    auto out = make(Kind::unary, unary());
    out->word = "-";
    return out;
  }
  if (sign("+")) return unary();
  return behind(primary());
}

ExpressionPointer ExpressionParser::filtered(ExpressionPointer out) {
  for (;;) {
    const bool pipe = sign("|");
    if (!pipe && !word("is")) return out;
    const bool negated = !pipe && word("not");
    auto step = make(pipe ? Kind::filter : Kind::test, std::move(out));
    step->word = now().kind == Token::Kind::name ? take().text : need_name();
    if (sign("(")) {
      step->arguments = arguments();
    } else if (!pipe && is_operand()) {
      step->arguments.places.push_back(behind(primary()));
    }
    out = std::move(step);
    if (negated) out = make(Kind::negation, std::move(out));
    // Members, indices and calls after a filter's brackets apply to its result.
    out = behind(std::move(out));
  }
}

bool ExpressionParser::is_operand() const {
  static constexpr std::array<std::string_view, 7> kWords{"and", "or", "if", "else", "in", "not", "is"};
  if (now().kind == Token::Kind::name) return std::ranges::find(kWords, now().text) == kWords.end();
  return now().kind == Token::Kind::string || now().kind == Token::Kind::integer ||
         now().kind == Token::Kind::real || is(Token::Kind::sign, "[") || is(Token::Kind::sign, "{");
}

Arguments ExpressionParser::arguments() {
  Arguments out;
  while (!sign(")")) {
    if (is(Token::Kind::sign, "*") || is(Token::Kind::sign, "**"))
      fail(now().line, "'*' in calls is not supported");
    if (now().kind == Token::Kind::name && ahead(1).kind == Token::Kind::sign && ahead(1).text == "=") {
      std::string name = take().text;
      take();
      out.names.emplace_back(std::move(name), expression());
    } else {
      out.places.push_back(expression());
    }
    if (!sign(",") && !is(Token::Kind::sign, ")"))
      fail(now().line, "')' was expected, not '" + now().text + "'");
  }
  return out;
}

ExpressionPointer ExpressionParser::behind(ExpressionPointer out) {
  for (int count = 0;; ++count) {
    if (count > kMostDepth) fail(now().line, "members of members are nested too deeply");
    if (sign(".")) {
      if (now().kind == Token::Kind::integer) {
        auto place = make(Kind::index, std::move(out));
        place->items.push_back(number(take()));
        out = std::move(place);
        continue;
      }
      auto member = make(Kind::member, std::move(out));
      member->word = need_name();
      out = std::move(member);
    } else if (sign("[")) {
      out = index(std::move(out));
    } else if (sign("(")) {
      auto call = make(Kind::call, std::move(out));
      call->arguments = arguments();
      out = std::move(call);
    } else {
      return out;
    }
  }
}

ExpressionPointer ExpressionParser::index(ExpressionPointer of) {
  std::vector<ExpressionPointer> parts;
  bool slices = false;
  const auto stands = [&] { return !is(Token::Kind::sign, ":") && !is(Token::Kind::sign, "]"); };
  parts.push_back(stands() ? expression() : nullptr);
  while (parts.size() < 3 && sign(":")) {
    slices = true;
    parts.push_back(stands() ? expression() : nullptr);
  }
  need("]");
  if (!slices && !parts[0]) fail(now().line, "an index is missing");
  auto out = make(slices ? Kind::slice : Kind::index, std::move(of));
  parts.resize(slices ? 3 : 1);
  for (auto& part : parts) out->items.push_back(std::move(part));
  return out;
}

ExpressionPointer ExpressionParser::literal(Value value) const {
  auto out = make(Kind::literal);
  out->value = std::move(value);
  return out;
}

ExpressionPointer ExpressionParser::primary() {
  const Token token = take();
  if (token.kind == Token::Kind::string) {
    std::string text = token.text;
    while (now().kind == Token::Kind::string) text += take().text;
    return literal(Value(std::move(text)));
  }
  if (token.kind == Token::Kind::integer || token.kind == Token::Kind::real) return number(token);
  if (token.kind == Token::Kind::name) {
    if (token.text == "true" || token.text == "True") return literal(Value(true));
    if (token.text == "false" || token.text == "False") return literal(Value(false));
    if (token.text == "none" || token.text == "None") return literal(Value::none());
    auto out = make(Kind::name);
    out->word = token.text;
    return out;
  }
  if (token.kind == Token::Kind::sign && token.text == "(") {
    if (sign(")")) return make(Kind::tuple);
    ExpressionPointer out = tuple();
    need(")");
    return out;
  }
  if (token.kind == Token::Kind::sign && token.text == "[") return list();
  if (token.kind == Token::Kind::sign && token.text == "{") return dict();
  fail(token.line, "'" + token.text + "' was not expected here");
}

ExpressionPointer ExpressionParser::number(const Token& token) const {
  const char* const end = token.text.data() + token.text.size();
  if (token.kind == Token::Kind::integer) {
    std::int64_t whole = 0;
    if (std::from_chars(token.text.data(), end, whole).ec != std::errc())
      fail(token.line, "a number is too large");
    return literal(Value(whole));
  }
  double real = 0;
  if (std::from_chars(token.text.data(), end, real).ec != std::errc())
    fail(token.line, "a number is too large");
  return literal(Value(real));
}

ExpressionPointer ExpressionParser::list() {
  auto out = make(Kind::list);
  while (!sign("]")) {
    out->items.push_back(expression());
    if (!sign(",") && !is(Token::Kind::sign, "]"))
      fail(now().line, "']' was expected, not '" + now().text + "'");
  }
  return out;
}

ExpressionPointer ExpressionParser::dict() {
  auto out = make(Kind::dict);
  while (!sign("}")) {
    out->items.push_back(expression());
    need(":");
    out->items.push_back(expression());
    if (!sign(",") && !is(Token::Kind::sign, "}"))
      fail(now().line, "'}' was expected, not '" + now().text + "'");
  }
  return out;
}

}  // namespace octet::text::jinja
