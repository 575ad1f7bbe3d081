// Filters, tests, methods and functions that chat templates call.
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "jinja/jinja_arguments.h"
#include "jinja/python_text.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::text::jinja {
namespace {

constexpr auto kCommonFilters = std::to_array<Signature>({
    {"tojson", "ensure_ascii,indent"},
    {"length", ""},
    {"count", ""},
    {"default", "default_value,boolean"},
    {"d", "default_value,boolean"},
    {"join", "d,attribute"},
    {"list", ""},
    {"items", ""},
    {"first", ""},
    {"last", ""},
    {"reverse", ""},
    {"selectattr", "..."},
    {"rejectattr", "..."},
    {"select", "..."},
    {"reject", "..."},
    {"map", "..."},
    {"unique", "case_sensitive,attribute"},
    {"sort", "reverse,case_sensitive,attribute"},
    {"min", "case_sensitive,attribute"},
    {"max", "case_sensitive,attribute"},
    {"sum", "attribute,start"},
    {"abs", ""},
    {"round", "precision,method"},
});

std::int64_t length_of(const Value& value) {
  return static_cast<std::int64_t>(items_of(value).size());
}

List pairs_of(const Value& value) {
  if (!value.as_dict()) throw Error(std::string("a dict was expected, not an ") + value.type());
  List out;
  for (const auto& [key, item] : *value.as_dict()) out.push_back(Value::tuple({Value::text(key), item}));
  return out;
}

/// Returns the member at a path, like jinja2: parts between dots; numbers are items of lists.
Value attribute_of(const Value& item, const std::string& path) {
  Value at = item;
  for (const std::string& part : octet::split(path, '.')) {
    const bool number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (number && part.size() < 10 && !at.as_dict()) {
      const List items = items_of(at);
      const auto place = static_cast<std::size_t>(std::stoul(part));
      at = place < items.size() ? items[place] : Value();
    } else {
      at = at.member(part);
    }
  }
  return at;
}

/// Returns the path for attribute_of(). An int selects an item.
std::optional<std::string> path_argument(const Call& call, std::size_t place) {
  const Value given = argument(call, place, "attribute");
  if (const auto* number = given.get<std::int64_t>()) return std::to_string(*number);
  return given.undefined() ? std::nullopt : text_argument(call, place, "attribute");
}

// Implements select and reject, and with `by_member` selectattr and rejectattr. Selects by a test, or by the
// truth of the item or its member.
Value selected(const Value& value, const Call& call, bool by_member, bool keep) {
  List out;
  const std::size_t test = by_member ? 1 : 0;
  for (const Value& item : items_of(value)) {
    const Value looked_at = by_member ? attribute_of(item, path_argument(call, 0).value_or("")) : item;
    bool found = looked_at.truth();
    if (call.places.size() > test) {
      Call rest;
      rest.places.assign(call.places.begin() + static_cast<std::ptrdiff_t>(test) + 1, call.places.end());
      found = apply_test(text_of(call.places[test]), looked_at, rest);
    }
    if (found == keep) out.push_back(item);
  }
  return Value::list(std::move(out));
}

Value mapped(const Value& value, const Call& call, Budget& budget) {
  List out;
  const auto member = path_argument(call, 99);
  for (const Value& item : items_of(value)) {
    if (member) {
      const Value found = attribute_of(item, *member);
      out.push_back(found.undefined() ? argument(call, 99, "default") : found);
    } else {
      Call rest;
      if (call.places.size() > 1) rest.places.assign(call.places.begin() + 1, call.places.end());
      out.push_back(apply_filter(text_argument(call, 0, "filter").value_or(""), item, rest, budget));
    }
  }
  return Value::list(std::move(out));
}

std::string joined(const Value& value, const Call& call, Budget& budget) {
  const std::string between = text_argument(call, 0, "d").value_or("");
  const auto member = path_argument(call, 1);
  std::string out;
  bool first = true;
  for (const Value& item : items_of(value)) {
    if (!first) out += between;
    first = false;
    out += (member ? attribute_of(item, *member) : item).print();
    budget.bytes(out.size() / 16 + 1);
  }
  return out;
}

/// Returns the key by which sort, unique, min and max compare an item. Texts are compared without case,
/// unless case_sensitive is set.
Value compared(const Value& item, const Call& call, std::size_t attribute_place) {
  const auto attribute = path_argument(call, attribute_place);
  const Value value = attribute ? attribute_of(item, *attribute) : item;
  const bool cased = argument(call, attribute_place - 1, "case_sensitive").truth();
  return value.as_text() && !cased ? Value(python::lower(*value.as_text())) : value;
}

bool before(const Value& a, const Value& b) {
  Budget budget;
  return operate("<", a, b, budget).truth();
}

Value sorted(const Value& value, const Call& call) {
  std::vector<std::pair<Value, Value>> items;
  for (const Value& item : items_of(value)) items.emplace_back(compared(item, call, 2), item);
  const bool falls = argument(call, 0, "reverse").truth();
  std::ranges::stable_sort(items, [&](const auto& a, const auto& b) {
    return falls ? before(b.first, a.first) : before(a.first, b.first);
  });
  List out;
  for (auto& [key, item] : items) out.push_back(std::move(item));
  return Value::list(std::move(out));
}

Value unique(const Value& value, const Call& call, Budget& budget) {
  List seen, out;
  for (const Value& item : items_of(value)) {
    const Value key = compared(item, call, 1);
    for (std::size_t i = 0; i < seen.size(); ++i) budget.step();
    if (std::ranges::find(seen, key) != seen.end()) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return Value::list(std::move(out));
}

Value extreme(const Value& value, const Call& call, bool largest) {
  const List items = items_of(value);
  if (items.empty()) return {};
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    const Value a = compared(items[i], call, 1), b = compared(items[best], call, 1);
    if (largest ? before(b, a) : before(a, b)) best = i;
  }
  return items[best];
}

Value summed(const Value& value, const Call& call, Budget& budget) {
  const auto attribute = path_argument(call, 0);
  Value total = argument(call, 1, "start", Value(std::int64_t{0}));
  for (const Value& item : items_of(value))
    total = operate("+", total, attribute ? attribute_of(item, *attribute) : item, budget);
  return total;
}

// Rounds halves to the even neighbour. An int stays an int.
Value rounded(const Value& value, const Call& call) {
  const std::int64_t precision = int_argument(call, 0, "precision", 0);
  if (text_argument(call, 1, "method").value_or("common") != "common")
    throw Error("the filter 'round' with a method other than 'common' is not supported");
  if (precision != 0) throw Error("the filter 'round' with a precision is not supported");
  if (value.get<std::int64_t>()) return value;
  return Value(std::nearbyint(value.as_double()));
}

template <class Work>
Value function(Work work) {
  return Value(std::make_shared<Function>(std::move(work)));
}

Value range(const Call& call, Budget& budget) {
  const auto number = [&](std::size_t i, std::int64_t fallback) {
    if (i >= call.places.size()) return fallback;
    const auto* found = call.places[i].get<std::int64_t>();
    if (!found) throw Error("range() takes integers");
    return *found;
  };
  const bool one = call.places.size() < 2;
  const std::int64_t begin = one ? 0 : number(0, 0);
  std::int64_t at = begin;
  const std::int64_t end = number(one ? 0 : 1, 0), by = number(2, 1);
  if (by == 0) throw Error("range() with a step of 0");
  List out;
  while (by > 0 ? at < end : at > end) {
    budget.step();
    out.push_back(Value(at));
    if (__builtin_add_overflow(at, by, &at)) break;
  }
  std::string name = "range(" + std::to_string(begin) + ", " + std::to_string(end);
  if (by != 1) name += ", " + std::to_string(by);
  return Value::sequence(Sequence::Kind::range, name + ")", std::move(out));
}

/// dict(MAPPING OR PAIRS, name=value).
Value new_dict(const Call& call) {
  if (call.places.size() > 1) throw Error("dict() takes one value and names");
  Dict out;
  const auto set = [&](const std::string& key, const Value& item) {
    const auto found = std::ranges::find(out, key, &std::pair<std::string, Value>::first);
    if (found == out.end()) {
      out.emplace_back(key, item);
    } else {
      found->second = item;
    }
  };
  const Value from = argument(call, 0, "");
  if (const Dict* items = from.as_dict()) {
    for (const auto& [key, item] : *items) set(key, item);
  } else if (!call.places.empty()) {
    for (const Value& pair : items_of(from)) {
      const List parts = items_of(pair);
      if (parts.size() != 2) throw Error("dict() takes pairs");
      set(parts[0].print(), parts[1]);
    }
  }
  for (const auto& [key, item] : call.names) set(key, item);
  return Value::dict(std::move(out));
}

Value now(const Call& call) {
  const std::time_t seconds = std::time(nullptr);
  std::tm day{};
  ::localtime_r(&seconds, &day);
  std::array<char, 256> text{};
  const std::string format = text_argument(call, 0, "format").value_or("");
  const std::size_t count = std::strftime(text.data(), text.size(), format.c_str(), &day);
  return Value::text({text.data(), count});
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Call& call, Budget& budget) {
  const auto is = [&](std::string_view a) { return name == a; };
  if (std::optional<Value> text = text_filter(name, value, call, budget)) return *text;
  const Signature* const signature = find_signature(kCommonFilters, name);
  if (signature == nullptr) throw Error("there is no filter '" + name.substr(0, 40) + "' here");
  require_parameters(*signature, call);
  if (is("tojson")) {
    if (argument(call, 0, "ensure_ascii").truth())
      throw Error("the filter 'tojson' with ensure_ascii is not supported");
    const std::int64_t spaces = std::clamp<std::int64_t>(int_argument(call, 1, "indent", 0), 0, 16);
    std::string out = value.to_json(static_cast<int>(spaces));
    budget.bytes(out.size());
    return Value(std::move(out));
  }
  if (is("length") || is("count")) return Value(length_of(value));
  if (is("default") || is("d")) {
    const bool falls = value.undefined() || (argument(call, 1, "boolean").truth() && !value.truth());
    return falls ? argument(call, 0, "default_value", Value::text("")) : value;
  }
  if (is("join")) return Value(joined(value, call, budget));
  if (is("list")) return Value::list(items_of(value));
  if (is("items")) return value.undefined() ? Value::list({}) : Value::list(pairs_of(value));
  if (is("first") || is("last")) {
    const List items = items_of(value);
    return items.empty() ? Value() : is("first") ? items.front() : items.back();
  }
  if (is("reverse")) {
    List items = items_of(value);
    std::ranges::reverse(items);
    return value.as_text() ? Value(joined(Value::list(std::move(items)), {}, budget))
                           : Value::list(std::move(items));
  }
  if (is("selectattr") || is("rejectattr")) return selected(value, call, true, is("selectattr"));
  if (is("select") || is("reject")) return selected(value, call, false, is("select"));
  if (is("map")) return mapped(value, call, budget);
  if (is("sort")) return sorted(value, call);
  if (is("unique")) return unique(value, call, budget);
  if (is("min") || is("max")) return extreme(value, call, is("max"));
  if (is("sum")) return summed(value, call, budget);
  if (is("abs")) {
    const Value zero(std::int64_t{0});
    return before(value, zero) ? operate("-", zero, value, budget) : operate("+", zero, value, budget);
  }
  if (is("round")) return rounded(value, call);
  check(false, "every filter of the table is built");
  return {};
}

bool apply_test(const std::string& name, const Value& value, const Call& call) {
  const auto is = [&](std::string_view a) { return name == a; };
  if (is("defined")) return !value.undefined();
  if (is("undefined")) return value.undefined();
  if (is("none")) return value.is_none();
  if (is("string")) return value.as_text() != nullptr;
  if (is("upper") || is("lower")) return *python::is(is("upper") ? "isupper" : "islower", value.print());
  if (is("mapping")) return value.as_dict() != nullptr;
  if (is("sequence") && value.get<Sequence>() && value.get<Sequence>()->kind == Sequence::Kind::view)
    return false;
  if (is("iterable") || is("sequence")) return value.as_list() || value.as_dict() || value.as_text();
  if (is("number")) return value.number();
  if (is("integer")) return value.get<std::int64_t>() != nullptr;
  if (is("float")) return value.get<double>() != nullptr;
  if (is("boolean")) return value.get<bool>() != nullptr;
  if (is("true")) return value.get<bool>() && value.truth();
  if (is("false")) return value.get<bool>() && !value.truth();
  if (is("callable")) return value.get<std::shared_ptr<Function>>() != nullptr;
  Budget budget;
  if (is("equalto") || is("eq") || is("==")) return value == argument(call, 0, "other");
  if (is("ne") || is("!=")) return !(value == argument(call, 0, "other"));
  if (is("in")) return operate("in", value, argument(call, 0, "seq"), budget).truth();
  if (is("odd") || is("even") || is("divisibleby")) {
    const Value by = is("divisibleby") ? argument(call, 0, "num") : Value(std::int64_t{2});
    return operate("%", value, by, budget).truth() == is("odd");
  }
  throw Error("there is no test '" + name.substr(0, 40) + "' here");
}

Value method_of(const Value& value, const std::string& name, Budget& budget) {
  const auto is = [&](std::string_view a) { return name == a; };
  if (value.as_dict()) {
    const auto view = [](const char* kind, List items) {
      return Value::sequence(Sequence::Kind::view, kind, std::move(items));
    };
    if (is("items")) return function([=](const Call&) { return view("dict_items", pairs_of(value)); });
    if (is("keys")) return function([=](const Call&) { return view("dict_keys", items_of(value)); });
    if (is("values")) {
      return function([=](const Call&) {
        List out;
        for (const auto& [key, item] : *value.as_dict()) out.push_back(item);
        return view("dict_values", std::move(out));
      });
    }
    if (is("get")) {
      return function([value](const Call& call) {
        const Value found = value.member(text_argument(call, 0, "key").value_or(""));
        return found.undefined() ? argument(call, 1, "default", Value::none()) : found;
      });
    }
  }
  if (const auto* list = value.get<std::shared_ptr<List>>(); list && is("append")) {
    return function([list = *list, &budget](const Call& call) {
      list->push_back(snapshot(argument(call, 0, "item"), budget));
      return Value::none();
    });
  }
  return value.as_text() ? text_method(*value.as_text(), name, budget) : Value();
}

Value global(const std::string& name, Budget& budget) {
  if (name == "range") return function([&budget](const Call& call) { return range(call, budget); });
  if (name == "namespace" || name == "dict")
    return function([&budget](const Call& call) { return snapshot(new_dict(call), budget); });
  if (name == "strftime_now") return function(now);
  if (name == "raise_exception") {
    return function([](const Call& call) -> Value {
      throw Error("the template refuses: " + text_argument(call, 0, "message").value_or(""));
    });
  }
  return {};
}

}  // namespace octet::text::jinja
