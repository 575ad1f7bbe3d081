#include "octet/text/jinja.h"

#include <algorithm>

#include "jinja/jinja_tree.h"
#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::text::jinja {

// Finds the variables that a template reads and does not set.

namespace {

using Names = std::set<std::string>;

class Reader {
 public:
  // Reads statements in order. A name that is read before it is set is recorded in `asked`.
  void read(const Block& block, Names& set) {
    for (const auto& statement : block.statements) read(*statement, set);
  }
  Names asked;

 private:
  void read(const Statement& s, Names& set) {
    using Kind = Statement::Kind;
    if (s.kind == Kind::macro) {
      set.insert(s.names[0]);
      Names inside = set;
      for (const Parameter& p : s.parameters) {
        if (p.fallback) read(*p.fallback, inside);
        inside.insert(p.name);
      }
      return read(s.blocks[0], inside);
    }
    if (s.kind == Kind::loop) {
      read(*s.expressions[0], set);
      Names inside = set;
      inside.insert(s.names.begin(), s.names.end());
      inside.insert("loop");
      if (s.expressions[1]) read(*s.expressions[1], inside);
      for (const Block& block : s.blocks) read(block, inside);
      return;
    }
    for (const ExpressionPointer& e : s.expressions) read(*e, set);
    if (s.kind == Kind::scope || s.kind == Kind::set || s.kind == Kind::filter_block) {
      Names inside = set;
      for (const Block& block : s.blocks) read(block, inside);
    } else {
      for (const Block& block : s.blocks) read(block, set);
    }
    if (s.kind == Kind::set && s.member.empty()) set.insert(s.names.begin(), s.names.end());
  }

  void read(const Expression& e, const Names& set) {
    if (e.kind == Expression::Kind::name && !set.contains(e.word)) {
      Budget budget;
      if (global(e.word, budget).undefined()) asked.insert(e.word);
    }
    for (const ExpressionPointer& item : e.items) {
      if (item) read(*item, set);
    }
    for (const ExpressionPointer& place : e.arguments.places) read(*place, set);
    for (const auto& [name, value] : e.arguments.names) read(*value, set);
  }
};

}  // namespace

Names asked_names(const Block& body) {
  Reader reader;
  Names set;
  reader.read(body, set);
  return reader.asked;
}

}  // namespace octet::text::jinja

namespace octet::text {

namespace jinja {
namespace {

enum class Flow { on, break_loop, next_turn };

// The names of a scope and their values. Look-up continues in the enclosing scopes.
struct Scope {
  Dict names;
  Scope* around = nullptr;

  Value* find(const std::string& name) {
    for (Scope* scope = this; scope; scope = scope->around) {
      for (auto& [key, value] : scope->names) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    for (auto& [key, old] : names) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    names.emplace_back(name, std::move(value));
  }
};

class Renderer {
 public:
  std::string run(const Block& body, const Json& variables) {
    Scope scope;
    for (const auto& [name, value] : variables.items()) scope.set(name, Value::from_json(value));
    std::string out;
    render(body, scope, out);
    return out;
  }

 private:
  Flow render(const Block& block, Scope& scope, std::string& out) {
    for (const auto& statement : block.statements) {
      const Flow flow = render(*statement, scope, out);
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  // Runs `work`. An Error without a location gets the line of the template.
  template <class Work>
  static auto at_line(int line, const Work& work) {
    try {
      return work();
    } catch (const Error& e) {
      if (!e.problem().where.empty()) throw;
      fail(line, e.problem().what);
    }
  }

  Flow render(const Statement& s, Scope& scope, std::string& out) {
    using Kind = Statement::Kind;
    budget_.step();
    switch (s.kind) {
      case Kind::text:
        write(s.text, out);
        return Flow::on;
      case Kind::print:
        at_line(s.line, [&] { write(value(*s.expressions[0], scope).print(), out); });
        return Flow::on;
      case Kind::choice: {
        std::size_t i = 0;
        while (i < s.expressions.size() && !value(*s.expressions[i], scope).truth()) ++i;
        return i < s.blocks.size() ? render(s.blocks[i], scope, out) : Flow::on;
      }
      case Kind::loop:
        return loop(s, scope, out);
      case Kind::set:
        at_line(s.line, [&] { set(s, scope); });
        return Flow::on;
      case Kind::macro:
        // The names that a macro reads must outlive it.
        if (scope.around) fail(s.line, "macros inside loops and macros are not supported");
        scope.set(s.names[0], macro(s, scope));
        return Flow::on;
      case Kind::break_:
        return Flow::break_loop;
      case Kind::continue_:
        return Flow::next_turn;
      case Kind::scope: {
        Scope inner{.names = {}, .around = &scope};
        return render(s.blocks[0], inner, out);
      }
      case Kind::filter_block: {
        std::string text;
        Scope inner{.names = {}, .around = &scope};
        const Flow flow = render(s.blocks[0], inner, text);
        at_line(s.line,
                [&] { write(apply_filter(s.text, Value(std::move(text)), {}, budget_).print(), out); });
        return flow;
      }
    }
    return Flow::on;
  }

  void write(const std::string& text, std::string& out) {
    budget_.bytes(text.size());
    out += text;
  }

  void set(const Statement& s, Scope& scope) {
    Value given;
    if (s.expressions.empty()) {
      std::string text;
      Scope inner{.names = {}, .around = &scope};
      render(s.blocks[0], inner, text);
      given = Value(std::move(text));
    } else {
      given = value(*s.expressions[0], scope);
    }
    if (!s.member.empty()) {
      Value* owner = scope.find(s.names[0]);
      Dict* members = owner ? owner->as_dict() : nullptr;
      if (!members) throw Error("'" + s.names[0] + "' is not a namespace");
      Value copy = snapshot(given, budget_);
      for (auto& [key, old] : *members) {
        if (key == s.member) {
          old = std::move(copy);
          return;
        }
      }
      members->emplace_back(s.member, std::move(copy));
      return;
    }
    assign(s.target, given, scope);
  }

  static void assign(const Target& target, const Value& given, Scope& scope) {
    if (!target.name.empty()) return scope.set(target.name, given);
    const List parts = items_of(given);
    if (parts.size() != target.parts.size()) throw Error("as many names as values were expected");
    for (std::size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i], scope);
  }

  Flow loop(const Statement& s, Scope& scope, std::string& out) {
    List items = at_line(s.line, [&] { return items_of(value(*s.expressions[0], scope)); });
    if (s.expressions[1]) {
      std::erase_if(items, [&](const Value& item) {
        Scope inner{.names = {}, .around = &scope};
        at_line(s.line, [&] { assign(s.target, item, inner); });
        return !value(*s.expressions[1], inner).truth();
      });
    }
    if (items.empty()) return s.blocks.size() > 1 ? render(s.blocks[1], scope, out) : Flow::on;
    const auto count = static_cast<std::int64_t>(items.size());
    for (std::int64_t i = 0; i < count; ++i) {
      budget_.step();
      const auto u = static_cast<std::size_t>(i);
      Scope inner{.names = {}, .around = &scope};
      inner.set("loop", Value::dict({{"index", Value(i + 1)},
                                     {"index0", Value(i)},
                                     {"revindex", Value(count - i)},
                                     {"revindex0", Value(count - i - 1)},
                                     {"first", Value(i == 0)},
                                     {"last", Value(i + 1 == count)},
                                     {"length", Value(count)},
                                     {"previtem", i > 0 ? items[u - 1] : Value()},
                                     {"nextitem", i + 1 < count ? items[u + 1] : Value()}}));
      at_line(s.line, [&] { assign(s.target, items[u], inner); });
      if (render(s.blocks[0], inner, out) == Flow::break_loop) break;
    }
    return Flow::on;
  }

  static void require_parameters(const Statement& s, const Call& call) {
    const std::string name = "macro '" + s.names[0].substr(0, 40) + "'";
    if (call.places.size() > s.parameters.size())
      throw Error(name + " takes no more than " + std::to_string(s.parameters.size()) + " values");
    for (const auto& [key, given] : call.names) {
      if (std::ranges::find(s.parameters, key, &Parameter::name) == s.parameters.end())
        throw Error(name + " has no parameter '" + key.substr(0, 40) + "'");
    }
  }

  // The defaults of parameters may use the parameters before them.
  Value macro(const Statement& s, Scope& scope) {
    return Value(std::make_shared<Function>([this, &s, &scope](const Call& call) {
      constexpr int kMostCalls = 32;
      if (++calls_ > kMostCalls) throw Error("macros call each other too deeply");
      require_parameters(s, call);
      Scope inner{.names = {}, .around = &scope};
      for (std::size_t i = 0; i < s.parameters.size(); ++i) {
        const Parameter& p = s.parameters[i];
        const auto named = std::ranges::find(call.names, p.name, &std::pair<std::string, Value>::first);
        inner.set(p.name, i < call.places.size()      ? call.places[i]
                          : named != call.names.end() ? named->second
                          : p.fallback                ? value(*p.fallback, inner)
                                                      : Value());
      }
      std::string text;
      render(s.blocks[0], inner, text);
      --calls_;
      return Value(std::move(text));
    }));
  }

  Value value(const Expression& e, Scope& scope) {
    budget_.step();
    return at_line(e.line, [&] { return compute(e, scope); });
  }

  Call call_of(const Arguments& arguments, Scope& scope) {
    Call out;
    for (const auto& place : arguments.places) out.places.push_back(value(*place, scope));
    for (const auto& [name, given] : arguments.names) out.names.emplace_back(name, value(*given, scope));
    return out;
  }

  Value compute(const Expression& e, Scope& scope) {
    using Kind = Expression::Kind;
    const auto item = [&](std::size_t i) { return value(*e.items[i], scope); };
    switch (e.kind) {
      case Kind::literal:
        return e.value;
      case Kind::name:
        if (const Value* found = scope.find(e.word)) return *found;
        return global(e.word, budget_);
      case Kind::list:
      case Kind::tuple: {
        List out;
        for (std::size_t i = 0; i < e.items.size(); ++i) out.push_back(snapshot(item(i), budget_));
        const bool tuple = e.kind == Kind::tuple;
        return snapshot(tuple ? Value::tuple(std::move(out)) : Value::list(std::move(out)), budget_);
      }
      case Kind::dict: {
        Dict out;
        for (std::size_t i = 0; i + 1 < e.items.size(); i += 2)
          out.emplace_back(item(i).print(), item(i + 1));
        return snapshot(Value::dict(std::move(out)), budget_);
      }
      case Kind::member:
        return member(item(0), e.word);
      case Kind::index:
        return index(item(0), item(1));
      case Kind::slice:
        return slice(e, scope);
      case Kind::call: {
        const Value called = item(0);
        const auto* function = called.get<std::shared_ptr<Function>>();
        if (!function) throw Error(std::string("an ") + called.type() + " cannot be called");
        return (**function)(call_of(e.arguments, scope));
      }
      case Kind::filter:
        return apply_filter(e.word, item(0), call_of(e.arguments, scope), budget_);
      case Kind::test:
        return Value(apply_test(e.word, item(0), call_of(e.arguments, scope)));
      case Kind::negation:
        return Value(!item(0).truth());
      case Kind::unary:
        return operate("-", Value(std::int64_t{0}), item(0), budget_);
      case Kind::binary: {
        Value left = item(0);
        if (e.word == "and") return left.truth() ? item(1) : left;
        if (e.word == "or") return left.truth() ? left : item(1);
        return operate(e.word, left, item(1), budget_);
      }
      case Kind::condition:
        if (item(1).truth()) return item(0);
        return e.items[2] ? item(2) : Value();
    }
    return {};
  }

  Value member(const Value& of, const std::string& name) {
    Value found = of.member(name);
    if (!found.undefined()) return found;
    if (of.undefined()) throw Error("'" + name + "' of an undefined value is read");
    return method_of(of, name, budget_);
  }

  /// Whether a value has items by number. A dict and its views have none.
  static bool has_places(const Value& of) {
    const auto* sequence = of.get<Sequence>();
    return !of.as_dict() && (!sequence || sequence->kind != Sequence::Kind::view);
  }

  Value index(const Value& of, const Value& by) {
    if (by.as_text()) return member(of, *by.as_text());
    const std::int64_t* number = by.get<std::int64_t>();
    if (!number) throw Error(std::string("an ") + by.type() + " is no index");
    if (!has_places(of)) return {};
    const List items = items_of(of);
    const auto count = static_cast<std::int64_t>(items.size());
    const std::int64_t i = *number < 0 ? *number + count : *number;
    return i >= 0 && i < count ? items[static_cast<std::size_t>(i)] : Value();
  }

  // Slices a list or a text like Python.
  Value slice(const Expression& e, Scope& scope) {
    const Value of = value(*e.items[0], scope);
    if (!has_places(of)) throw Error(std::string("an ") + of.type() + " cannot be cut");
    const List items = items_of(of);
    const auto count = static_cast<std::int64_t>(items.size());
    const auto part = [&](std::size_t i, std::int64_t fallback) {
      if (!e.items[i]) return fallback;
      const Value given = value(*e.items[i], scope);
      if (given.is_none()) return fallback;
      const std::int64_t* number = given.get<std::int64_t>();
      if (!number) throw Error(std::string("an ") + given.type() + " is no index");
      return std::clamp<std::int64_t>(*number, -(INT64_C(1) << 40), INT64_C(1) << 40);
    };
    const std::int64_t by = part(3, 1);
    if (by == 0) throw Error("a slice has a step of 0");
    const auto place = [&](std::size_t i, std::int64_t fallback) {
      if (!e.items[i]) return fallback;
      std::int64_t at = part(i, fallback);
      if (at < 0) at += count;
      return by > 0 ? std::clamp<std::int64_t>(at, 0, count) : std::clamp<std::int64_t>(at, -1, count - 1);
    };
    const std::int64_t begin = place(1, by > 0 ? 0 : count - 1), end = place(2, by > 0 ? count : -1);
    List out;
    for (std::int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
      budget_.step();
      out.push_back(items[static_cast<std::size_t>(i)]);
    }
    if (of.is_tuple()) return Value::tuple(std::move(out));
    if (!of.as_text()) return Value::list(std::move(out));
    std::string text;
    for (const Value& c : out) text += *c.as_text();
    return Value(std::move(text));
  }

  Budget budget_;
  int calls_ = 0;
};

}  // namespace
}  // namespace jinja

JinjaTemplate::JinjaTemplate(std::string_view source) {
  constexpr std::size_t kMost = std::size_t{256} << 10;
  if (source.size() > kMost) throw Error("a chat template is longer than 256 KiB");
  body_ = std::make_shared<const jinja::Block>(jinja::parse(source));
}

std::string JinjaTemplate::render(const Json& variables) const {
  return jinja::Renderer().run(*body_, variables);
}

}  // namespace octet::text
