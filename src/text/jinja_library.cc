// Filters, tests, methods and functions that chat templates call.
#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>

#include "jinja_value.h"
#include "octet/base/error.h"
#include "utf8.h"

namespace octet::text::jinja {
namespace {

Value argument(const Call& call, std::size_t place, const std::string& name, Value fallback = {}) {
  if (place < call.places.size()) return call.places[place];
  for (const auto& [key, value] : call.names) {
    if (key == name) return value;
  }
  return fallback;
}

std::string text_argument(const Call& call, std::size_t place, const std::string& name,
                          const std::string& fallback) {
  const Value value = argument(call, place, name, Value(fallback));
  if (!value.as_text()) throw Error("argument '" + name + "' is no text");
  return *value.as_text();
}

const std::string& text_of(const Value& value) {
  if (!value.as_text()) throw Error(std::string("a str was expected, not an ") + value.type());
  return *value.as_text();
}

std::string strip(const std::string& text, const std::string& signs, bool left, bool right) {
  std::size_t begin = 0, end = text.size();
  const auto drops = [&](char c) { return signs.find(c) != std::string::npos; };
  while (left && begin < end && drops(text[begin])) ++begin;
  while (right && end > begin && drops(text[end - 1])) --end;
  return text.substr(begin, end - begin);
}
const std::string kBlanks = " \t\n\r\v\f";

std::string replace(const std::string& text, const std::string& from, const std::string& to, Budget& budget) {
  if (from.empty()) throw Error("an empty text cannot be replaced");
  std::string out;
  std::size_t done = 0;
  for (std::size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size()) {
    out.append(text, done, at - done) += to;
    budget.bytes(to.size());
  }
  return out.append(text, done);
}

// ASCII letters; others stay.
std::string cased(std::string text, bool upper) {
  for (char& c : text) {
    const auto u = static_cast<unsigned char>(c);
    c = static_cast<char>(upper ? std::toupper(u) : std::tolower(u));
  }
  return text;
}

std::string titled(const std::string& text, bool every_word) {
  std::string out = cased(text, false);
  bool first = true;
  for (char& c : out) {
    if (first) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    first = every_word && !std::isalnum(static_cast<unsigned char>(c));
  }
  return out;
}

List split(const std::string& text, const Call& call) {
  const Value by = argument(call, 0, "sep", Value::none());
  const Value most = argument(call, 1, "maxsplit", Value(std::int64_t{-1}));
  const std::int64_t* limit = most.get<std::int64_t>();
  List out;
  if (by.as_text() && by.as_text()->empty()) throw Error("a text cannot be split by an empty one");
  std::size_t begin = 0;
  const auto may = [&] { return !limit || *limit < 0 || static_cast<std::int64_t>(out.size()) < *limit; };
  if (by.as_text()) {
    for (std::size_t at; may() && (at = text.find(*by.as_text(), begin)) != std::string::npos;
         begin = at + by.as_text()->size()) {
      out.push_back(Value(text.substr(begin, at - begin)));
    }
    out.push_back(Value(text.substr(begin)));
    return out;
  }
  for (;;) {
    begin = text.find_first_not_of(kBlanks, begin);
    if (begin == std::string::npos) return out;
    const std::size_t end = may() ? text.find_first_of(kBlanks, begin) : std::string::npos;
    out.push_back(Value(text.substr(begin, end == std::string::npos ? end : end - begin)));
    if (end == std::string::npos) return out;
    begin = end;
  }
}

std::int64_t length_of(const Value& value) {
  return static_cast<std::int64_t>(items_of(value).size());
}

List pairs_of(const Value& value) {
  if (!value.as_dict()) throw Error(std::string("a dict was expected, not an ") + value.type());
  List out;
  for (const auto& [key, item] : *value.as_dict()) out.push_back(Value::list({Value::text(key), item}));
  return out;
}

// selectattr, rejectattr, select, reject: by the truth of an item or of its member, or by a test.
Value selected(const Value& value, const Call& call, bool by_member, bool keep) {
  List out;
  const std::size_t test = by_member ? 1 : 0;
  for (const Value& item : items_of(value)) {
    const Value looked_at = by_member ? item.member(text_argument(call, 0, "attribute", "")) : item;
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
  const Value member = argument(call, 99, "attribute");
  for (const Value& item : items_of(value)) {
    if (member.as_text()) {
      out.push_back(item.member(*member.as_text()));
    } else {
      Call rest;
      if (call.places.size() > 1) rest.places.assign(call.places.begin() + 1, call.places.end());
      out.push_back(apply_filter(text_argument(call, 0, "filter", ""), item, rest, budget));
    }
  }
  return Value::list(std::move(out));
}

std::string joined(const Value& value, const Call& call, Budget& budget) {
  const std::string between = text_argument(call, 0, "d", "");
  const Value member = argument(call, 1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(value)) {
    if (!first) out += between;
    first = false;
    out += (member.as_text() ? item.member(*member.as_text()) : item).print();
    budget.bytes(out.size() / 16 + 1);
  }
  return out;
}

std::string indented(const std::string& text, const Call& call) {
  const Value width = argument(call, 0, "width", Value(std::int64_t{4}));
  const std::int64_t* count = width.get<std::int64_t>();
  const std::string blanks(count ? static_cast<std::size_t>(std::clamp<std::int64_t>(*count, 0, 100)) : 4,
                           ' ');
  std::string out = argument(call, 1, "first").truth() ? blanks : "";
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] == '\n' && i + 1 < text.size() && text[i + 1] != '\n') out += blanks;
  }
  return out;
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
  std::int64_t at = one ? 0 : number(0, 0);
  const std::int64_t end = number(one ? 0 : 1, 0), by = number(2, 1);
  if (by == 0) throw Error("range() with a step of 0");
  List out;
  while (by > 0 ? at < end : at > end) {
    budget.step();
    out.push_back(Value(at));
    if (__builtin_add_overflow(at, by, &at)) break;
  }
  return Value::list(std::move(out));
}

Value now(const Call& call) {
  const std::time_t seconds = std::time(nullptr);
  std::tm day{};
  ::localtime_r(&seconds, &day);
  std::array<char, 256> text{};
  const std::string format = text_argument(call, 0, "format", "");
  const std::size_t count = std::strftime(text.data(), text.size(), format.c_str(), &day);
  return Value::text({text.data(), count});
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Call& call, Budget& budget) {
  const auto is = [&](std::string_view a) { return name == a; };
  if (is("trim")) return Value(strip(value.print(), text_argument(call, 0, "chars", kBlanks), true, true));
  if (is("tojson")) {
    const Value indent = argument(call, 0, "indent", Value::none());
    const std::int64_t* spaces = indent.get<std::int64_t>();
    std::string out = value.to_json(spaces ? static_cast<int>(std::clamp<std::int64_t>(*spaces, 0, 16)) : 0);
    budget.bytes(out.size());
    return Value(std::move(out));
  }
  if (is("length") || is("count")) return Value(length_of(value));
  if (is("default") || is("d")) {
    const bool falls = value.undefined() || (argument(call, 1, "boolean").truth() && !value.truth());
    return falls ? argument(call, 0, "default_value", Value::text("")) : value;
  }
  if (is("upper") || is("lower")) return Value(cased(value.print(), is("upper")));
  if (is("capitalize") || is("title")) return Value(titled(value.print(), is("title")));
  if (is("string") || is("safe")) return Value(value.print());
  if (is("replace")) {
    const std::string from = text_argument(call, 0, "s", ""), to = text_argument(call, 1, "new", "");
    return Value(replace(value.print(), from, to, budget));
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
  if (is("indent")) return Value(indented(value.print(), call));
  if (is("int") && value.number())
    return Value(static_cast<std::int64_t>(std::clamp(value.as_double(), -9e15, 9e15)));
  if (is("float") && value.number()) return Value(value.as_double());
  throw Error("there is no filter '" + name.substr(0, 40) + "' here");
}

bool apply_test(const std::string& name, const Value& value, const Call& call) {
  const auto is = [&](std::string_view a) { return name == a; };
  if (is("defined")) return !value.undefined();
  if (is("undefined")) return value.undefined();
  if (is("none")) return value.is_none();
  if (is("string")) return value.as_text() != nullptr;
  if (is("mapping")) return value.as_dict() != nullptr;
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
    if (is("items")) return function([value](const Call&) { return Value::list(pairs_of(value)); });
    if (is("keys")) return function([value](const Call&) { return Value::list(items_of(value)); });
    if (is("values")) {
      return function([value](const Call&) {
        List out;
        for (const auto& [key, item] : *value.as_dict()) out.push_back(item);
        return Value::list(std::move(out));
      });
    }
    if (is("get")) {
      return function([value](const Call& call) {
        const Value found = value.member(text_argument(call, 0, "key", ""));
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
  if (!value.as_text()) return {};
  const std::string text = *value.as_text();
  if (is("strip") || is("lstrip") || is("rstrip")) {
    const bool left = !is("rstrip"), right = !is("lstrip");
    return function([=](const Call& call) {
      return Value(strip(text, text_argument(call, 0, "chars", kBlanks), left, right));
    });
  }
  if (is("split")) return function([=](const Call& call) { return Value::list(split(text, call)); });
  if (is("startswith") || is("endswith")) {
    const bool front = is("startswith");
    return function([=](const Call& call) {
      const std::string part = text_argument(call, 0, "prefix", "");
      return Value(front ? text.starts_with(part) : text.ends_with(part));
    });
  }
  if (is("upper") || is("lower")) {
    const bool upper = is("upper");
    return function([=](const Call&) { return Value(cased(text, upper)); });
  }
  if (is("title") || is("capitalize")) {
    const bool every = is("title");
    return function([=](const Call&) { return Value(titled(text, every)); });
  }
  if (is("replace")) {
    return function([text, &budget](const Call& call) {
      const std::string from = text_argument(call, 0, "old", ""), to = text_argument(call, 1, "new", "");
      return Value(replace(text, from, to, budget));
    });
  }
  if (is("find")) {
    return function([=](const Call& call) {
      const std::size_t at = text.find(text_argument(call, 0, "sub", ""));
      return Value(at == std::string::npos ? std::int64_t{-1} : static_cast<std::int64_t>(at));
    });
  }
  return {};
}

Value global(const std::string& name, Budget& budget) {
  if (name == "range") return function([&budget](const Call& call) { return range(call, budget); });
  if (name == "namespace" || name == "dict") {
    return function([&budget](const Call& call) { return snapshot(Value::dict(call.names), budget); });
  }
  if (name == "strftime_now") return function(now);
  if (name == "raise_exception") {
    return function([](const Call& call) -> Value {
      throw Error("the template refuses: " + text_argument(call, 0, "message", ""));
    });
  }
  return {};
}

}  // namespace octet::text::jinja
