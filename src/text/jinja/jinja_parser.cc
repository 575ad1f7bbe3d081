#include <algorithm>

#include "jinja/jinja_expressions.h"
#include "octet/base/error.h"

namespace octet::text::jinja {
namespace {

using Words = std::vector<std::string_view>;

class Parser : public ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Block run() {
    Block out = block({});
    if (now().kind != Token::Kind::end) fail(now().line, "'" + now().text + "' has no beginning");
    return out;
  }

 private:
  // Parses statements up to a tag that begins with one of `ends`. Does not consume this tag.
  Block block(const Words& ends) {
    const Depth depth(*this);
    Block out;
    for (;;) {
      if (now().kind == Token::Kind::end) {
        if (!ends.empty()) fail(now().line, "'" + std::string(ends.back()) + "' is missing");
        return out;
      }
      if (now().kind == Token::Kind::text) {
        auto text = std::make_unique<Statement>();
        text->text = take().text;
        out.statements.push_back(std::move(text));
      } else if (now().kind == Token::Kind::print_begin) {
        auto print = std::make_unique<Statement>();
        print->kind = Statement::Kind::print;
        print->line = take().line;
        print->expressions.push_back(tuple());
        if (now().kind != Token::Kind::print_end)
          fail(now().line, "'}}' was expected, not '" + now().text + "'");
        take();
        out.statements.push_back(std::move(print));
      } else {
        const std::string& name = ahead(1).text;
        if (std::ranges::find(ends, name) != ends.end() || name.starts_with("end")) {
          if (std::ranges::find(ends, name) == ends.end())
            fail(now().line, "'" + name + "' was not expected here");
          return out;
        }
        out.statements.push_back(statement());
      }
    }
  }

  // Consumes the start of the tag that ended a block, and returns its name.
  std::string ending() {
    take();
    return take().text;
  }

  std::unique_ptr<Statement> statement() {
    take();
    auto out = std::make_unique<Statement>();
    out->line = now().line;
    const std::string name = need_name();
    if (name == "if") {
      choice(*out);
    } else if (name == "for") {
      loop(*out);
    } else if (name == "set") {
      set(*out);
    } else if (name == "macro") {
      macro(*out);
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(out->line, "'" + name + "' is outside of a loop");
      out->kind = name == "break" ? Statement::Kind::break_ : Statement::Kind::continue_;
    } else if (name == "generation") {
      // The tag marks the text that the model writes; it does not change the text.
      inside(*out, Statement::Kind::scope, "endgeneration");
    } else if (name == "filter") {
      out->text = need_name();
      inside(*out, Statement::Kind::filter_block, "endfilter");
    } else {
      fail(out->line, "the statement '" + name.substr(0, 40) + "' is not supported");
    }
    end_tag();
    return out;
  }

  void inside(Statement& out, Statement::Kind kind, std::string_view end) {
    out.kind = kind;
    end_tag();
    out.blocks.push_back(block({end}));
    ending();
  }

  void choice(Statement& out) {
    out.kind = Statement::Kind::choice;
    for (;;) {
      out.expressions.push_back(tuple());
      end_tag();
      out.blocks.push_back(block({"elif", "else", "endif"}));
      const std::string end = ending();
      if (end == "elif") continue;
      if (end == "else") {
        end_tag();
        out.blocks.push_back(block({"endif"}));
        ending();
      }
      return;
    }
  }

  // "a", "a, b" or "(a, b), c".
  Target target(std::vector<std::string>& names) {
    const Depth depth(*this);
    Target first = one_target(names);
    if (!is(Token::Kind::sign, ",")) return first;
    Target out;
    out.parts.push_back(std::move(first));
    while (sign(",")) out.parts.push_back(one_target(names));
    return out;
  }
  Target one_target(std::vector<std::string>& names) {
    if (sign("(")) {
      Target inner = target(names);
      need(")");
      return inner;
    }
    names.push_back(need_name());
    return {.name = names.back(), .parts = {}};
  }

  void loop(Statement& out) {
    out.kind = Statement::Kind::loop;
    out.target = target(out.names);
    if (!word("in")) fail(now().line, "'in' was expected");
    out.expressions.push_back(tuple(false));
    out.expressions.push_back(word("if") ? expression() : nullptr);
    if (word("recursive")) fail(now().line, "recursive loops are not supported");
    end_tag();
    ++loops_;
    out.blocks.push_back(block({"else", "endfor"}));
    --loops_;
    if (ending() == "else") {
      end_tag();
      out.blocks.push_back(block({"endfor"}));
      ending();
    }
  }

  void set(Statement& out) {
    out.kind = Statement::Kind::set;
    out.target = target(out.names);
    if (sign(".")) out.member = need_name();
    if (!sign("=")) return inside(out, Statement::Kind::set, "endset");
    out.expressions.push_back(tuple());
  }

  void macro(Statement& out) {
    out.kind = Statement::Kind::macro;
    out.names.push_back(need_name());
    need("(");
    while (!sign(")")) {
      Parameter parameter{need_name(), nullptr};
      if (sign("=")) parameter.fallback = expression();
      out.parameters.push_back(std::move(parameter));
      if (!sign(",") && !is(Token::Kind::sign, ")")) fail(now().line, "')' was expected");
    }
    const int around = std::exchange(loops_, 0);
    inside(out, Statement::Kind::macro, "endmacro");
    loops_ = around;
  }

  int loops_ = 0;  ///< number of loops around the current statement
};

}  // namespace

void fail(int line, const std::string& what) {
  throw Error({.what = what,
               .where = "line " + std::to_string(line) + " of the chat template",
               .fix = "name a built-in template with the key template, or rewrite the model's chat template "
                      "without it"});
}

Block parse(std::string_view source) {
  return Parser(cut(source)).run();
}

}  // namespace octet::text::jinja
