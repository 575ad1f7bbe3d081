#include "jinja/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "jinja/python_json.h"
#include "jinja/python_text.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "unicode/utf8.h"

namespace octet::text::jinja {
namespace {

PythonJson python_of(const Value& value) {
  using Kind = PythonJson::Kind;
  if (const auto* flag = value.get<bool>()) return {Kind::boolean, *flag ? "true" : "false", {}, {}};
  if (const auto* number = value.get<std::int64_t>()) return {Kind::number, std::to_string(*number), {}, {}};
  if (const auto* number = value.get<double>()) return {Kind::number, python_float(*number), {}, {}};
  if (const auto* text = value.as_text()) return PythonJson::string(*text);
  PythonJson out;
  if (const List* list = value.as_list(); list && value.same_sequence(value)) {
    out.kind = Kind::list;
    for (const Value& item : *list) out.items.push_back(python_of(item));
  } else if (const Dict* dict = value.as_dict()) {
    out.kind = Kind::object;
    for (const auto& [key, item] : *dict) out.members.emplace_back(key, python_of(item));
  } else if (!value.is_none()) {
    throw Error(std::string("an ") + value.type() + " cannot be written as JSON");
  }
  return out;
}

// Prints a value as Python prints it inside lists and dicts.
std::string inner_print(const Value& value) {
  const std::string* text = value.as_text();
  if (value.undefined()) return "Undefined";
  return text ? python::repr(*text) : value.print();
}

/// "1, 'a'".
std::string print_items(const List& items) {
  std::string out;
  for (const Value& item : items) out += (out.empty() ? "" : ", ") + inner_print(item);
  return out;
}

std::string print_sequence(const Sequence& sequence) {
  const List& items = *sequence.items;
  if (sequence.kind == Sequence::Kind::range) return sequence.name;
  if (sequence.kind == Sequence::Kind::view) return sequence.name + "([" + print_items(items) + "])";
  return "(" + print_items(items) + (items.size() == 1 ? ",)" : ")");
}

}  // namespace

const List* Value::as_list() const {
  if (const auto* sequence = get<Sequence>()) return sequence->items.get();
  const auto* found = get<std::shared_ptr<List>>();
  return found ? found->get() : nullptr;
}

bool Value::is_tuple() const {
  const auto* sequence = get<Sequence>();
  return sequence && sequence->kind == Sequence::Kind::tuple;
}

bool Value::same_sequence(const Value& other) const {
  return (is_tuple() && other.is_tuple()) ||
         (get<std::shared_ptr<List>>() && other.get<std::shared_ptr<List>>());
}

Dict* Value::as_dict() const {
  const auto* found = get<std::shared_ptr<Dict>>();
  return found ? found->get() : nullptr;
}

Value Value::from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return Value(json.get<std::int64_t>());
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value(json.get<std::string>());
    case Json::value_t::array: {
      List items;
      for (const Json& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case Json::value_t::object: {
      Dict items;
      for (const auto& [key, item] : json.items()) items.emplace_back(key, from_json(item));
      return dict(std::move(items));
    }
    default:
      return none();
  }
}

bool Value::number() const {
  return get<bool>() || get<std::int64_t>() || get<double>();
}

double Value::as_double() const {
  if (const auto* flag = get<bool>()) return *flag ? 1 : 0;
  if (const auto* whole = get<std::int64_t>()) return static_cast<double>(*whole);
  if (const auto* real = get<double>()) return *real;
  throw Error(std::string("a number was expected, not an ") + type());
}

bool Value::truth() const {
  if (number()) return as_double() != 0;
  if (const std::string* text = as_text()) return !text->empty();
  if (const List* items = as_list()) return !items->empty();
  if (const Dict* items = as_dict()) return !items->empty();
  return get<std::shared_ptr<Function>>() != nullptr;
}

Value Value::member(const std::string& name) const {
  if (const Dict* items = as_dict()) {
    for (const auto& [key, item] : *items) {
      if (key == name) return item;
    }
  }
  return {};
}

bool Value::operator==(const Value& other) const {
  if (number() && other.number()) return as_double() == other.as_double();
  if (as_text() && other.as_text()) return *as_text() == *other.as_text();
  if (as_list() && other.as_list()) {
    const auto *a = get<Sequence>(), *b = other.get<Sequence>();
    const bool alike = a && b ? a->kind == b->kind : !a && !b;
    return alike && *as_list() == *other.as_list();
  }
  if (const Dict* a = as_dict(), *b = other.as_dict(); a && b) {
    return a->size() == b->size() && std::ranges::all_of(*a, [&](const auto& item) {
             const Value there = other.member(item.first);
             return !there.undefined() && there == item.second;
           });
  }
  return (is_none() && other.is_none()) || (undefined() && other.undefined());
}

std::string Value::print() const {
  if (const auto* flag = get<bool>()) return *flag ? "True" : "False";
  if (const auto* whole = get<std::int64_t>()) return std::to_string(*whole);
  if (const auto* real = get<double>()) return python_float(*real);
  if (const std::string* text = as_text()) return *text;
  if (is_none()) return "None";
  std::string out;
  if (const auto* sequence = get<Sequence>()) return print_sequence(*sequence);
  if (const List* items = as_list()) return "[" + print_items(*items) + "]";
  if (const Dict* items = as_dict()) {
    for (const auto& [key, item] : *items) {
      out += (out.empty() ? "" : ", ") + inner_print(text(key)) + ": " + inner_print(item);
    }
    return "{" + out + "}";
  }
  return "";
}

std::string Value::to_json(int indent) const {
  return dump_python_json(python_of(*this), std::max(0, indent));
}

const char* Value::type() const {
  static constexpr const char* kNames[] = {
      "undefined value", "None", "bool", "int", "float", "str", "list", "dict", "function", "sequence"};
  return is_tuple() ? "tuple" : kNames[data.index()];
}

void Budget::step() {
  constexpr std::int64_t kMost = 1'000'000;
  if (++steps_ > kMost) throw Error("the template takes more than a million steps");
}

void Budget::bytes(std::size_t count) {
  constexpr std::int64_t kMost = std::int64_t{64} << 20;
  bytes_ += static_cast<std::int64_t>(std::min<std::size_t>(count, std::size_t{1} << 40));
  if (bytes_ > kMost) throw Error("the template makes more than 64 MiB of text");
}

Value snapshot(const Value& value, Budget& budget, int depth) {
  constexpr int kMostDepth = 64;
  if (depth > kMostDepth) throw Error("values are nested too deeply");
  budget.bytes(sizeof(Value));
  if (const List* items = value.as_list()) {
    List out;
    for (const Value& item : *items) out.push_back(snapshot(item, budget, depth + 1));
    if (const auto* sequence = value.get<Sequence>())
      return Value::sequence(sequence->kind, sequence->name, std::move(out));
    return Value::list(std::move(out));
  }
  if (const Dict* items = value.as_dict()) {
    Dict out;
    for (const auto& [key, item] : *items) out.emplace_back(key, snapshot(item, budget, depth + 1));
    return Value::dict(std::move(out));
  }
  return value;
}

List items_of(const Value& value) {
  if (const List* items = value.as_list()) return *items;
  List out;
  if (const Dict* items = value.as_dict()) {
    for (const auto& [key, item] : *items) out.push_back(Value::text(key));
  } else if (const std::string* text = value.as_text()) {
    for (std::size_t i = 0; i < text->size();) {
      const std::size_t length = std::min(
          text->size() - i, std::max<std::size_t>(1, utf8_length(static_cast<unsigned char>((*text)[i]))));
      out.push_back(Value(text->substr(i, length)));
      i += length;
    }
  } else if (!value.undefined()) {
    throw Error(std::string("cannot loop over an ") + value.type());
  }
  return out;
}

namespace {

int compare(const Value& a, const Value& b) {
  if (a.same_sequence(b)) {
    const List &x = *a.as_list(), &y = *b.as_list();
    const auto [left, right] = std::ranges::mismatch(x, y);
    if (left != x.end() && right != y.end()) return compare(*left, *right);
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  if (a.number() && b.number()) {
    return a.as_double() < b.as_double() ? -1 : a.as_double() > b.as_double() ? 1 : 0;
  }
  if (a.as_text() && b.as_text()) return a.as_text()->compare(*b.as_text());
  throw Error(std::string("an ") + a.type() + " cannot be compared with an " + b.type());
}

bool holds(const Value& all, const Value& one) {
  if (const std::string* text = all.as_text()) {
    return one.as_text() && text->find(*one.as_text()) != std::string::npos;
  }
  const List items = items_of(all);
  return std::ranges::find(items, one) != items.end();
}

Value arithmetic(const std::string& word, const Value& a, const Value& b) {
  const auto *x = a.get<std::int64_t>(), *y = b.get<std::int64_t>();
  if (x && y && word == "**" && *y >= 0) {
    const double power = std::pow(*x, *y);
    if (std::abs(power) < 0x1p53) return Value(static_cast<std::int64_t>(power));
  }
  if (x && y && word != "/" && word != "**") {
    std::int64_t out = 0;
    if (word == "+" && !__builtin_add_overflow(*x, *y, &out)) return Value(out);
    if (word == "-" && !__builtin_sub_overflow(*x, *y, &out)) return Value(out);
    if (word == "*" && !__builtin_mul_overflow(*x, *y, &out)) return Value(out);
    if ((word == "//" || word == "%") && *y != 0 && !(*y == -1 && *x == INT64_MIN)) {
      std::int64_t quotient = *x / *y;
      if (*x % *y != 0 && (*x < 0) != (*y < 0)) --quotient;
      return Value(word == "//" ? quotient : *x - quotient * *y);
    }
    throw Error("an integer is too large, or divided by 0");
  }
  const double left = a.as_double(), right = b.as_double();
  if (word == "+") return Value(left + right);
  if (word == "-") return Value(left - right);
  if (word == "*") return Value(left * right);
  if (word == "**") return Value(std::pow(left, right));
  if (right == 0) throw Error("a number is divided by 0");
  if (word == "/") return Value(left / right);
  if (word == "//") return Value(std::floor(left / right));
  return Value(left - right * std::floor(left / right));
}

}  // namespace

namespace {

/// Multiplies a list or a tuple by an int.
Value repeated(const Value& a, const Value& b, Budget& budget) {
  const Value &of = a.same_sequence(a) ? a : b, &times = a.same_sequence(a) ? b : a;
  const auto* flag = times.get<bool>();
  const std::int64_t* count = times.get<std::int64_t>();
  if (!count && !flag) throw Error(std::string("a list cannot be multiplied by an ") + times.type());
  List out;
  for (std::int64_t i = 0; i < (count ? *count : *flag ? 1 : 0); ++i) {
    budget.step();
    budget.bytes(of.as_list()->size() * sizeof(Value));
    for (const Value& item : *of.as_list()) out.push_back(snapshot(item, budget));
  }
  return of.is_tuple() ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

}  // namespace

Value operate(const std::string& word, const Value& a, const Value& b, Budget& budget) {
  if (word == "==") return Value(a == b);
  if (word == "!=") return Value(!(a == b));
  if (word == "in") return Value(holds(b, a));
  if (word == "not in") return Value(!holds(b, a));
  if (word == "<") return Value(compare(a, b) < 0);
  if (word == "<=") return Value(compare(a, b) <= 0);
  if (word == ">") return Value(compare(a, b) > 0);
  if (word == ">=") return Value(compare(a, b) >= 0);
  if (word == "~" || (word == "+" && a.as_text() && b.as_text())) {
    std::string out = a.print() + b.print();
    budget.bytes(out.size());
    return Value(std::move(out));
  }
  if (word == "+" && a.same_sequence(b)) {
    List out = *a.as_list();
    out.insert(out.end(), b.as_list()->begin(), b.as_list()->end());
    budget.bytes(out.size() * sizeof(Value));
    return a.is_tuple() ? Value::tuple(std::move(out)) : Value::list(std::move(out));
  }
  if (word == "*" && (a.same_sequence(a) || b.same_sequence(b))) return repeated(a, b, budget);
  if (word == "%" && a.as_text()) throw Error("'%' with a text is not supported; join texts with '~'");
  if (word == "*" && (a.as_text() || b.as_text())) {
    const Value &text = a.as_text() ? a : b, &times = a.as_text() ? b : a;
    const std::int64_t* count = times.get<std::int64_t>();
    if (!count) throw Error(std::string("a text cannot be multiplied by an ") + times.type());
    std::string out;
    for (std::int64_t i = 0; i < *count; ++i) {
      budget.step();
      budget.bytes(text.as_text()->size());
      out += *text.as_text();
    }
    return Value(std::move(out));
  }
  return arithmetic(word, a, b);
}

}  // namespace octet::text::jinja
