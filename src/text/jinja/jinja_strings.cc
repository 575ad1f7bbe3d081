// Methods of str and filters of text, with the results of Python and jinja2.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "jinja/jinja_arguments.h"
#include "jinja/python_text.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace octet::text::jinja {
namespace {

constexpr std::int64_t kMostInt = std::numeric_limits<std::int64_t>::max();
/// The largest accepted width. No real template pads lines to more.
constexpr std::int64_t kMostWidth = 1 << 20;

constexpr auto kMethods = std::to_array<Signature>({
    {"strip", "chars"},
    {"lstrip", "chars"},
    {"rstrip", "chars"},
    {"split", "sep,maxsplit"},
    {"rsplit", "sep,maxsplit"},
    {"splitlines", "keepends"},
    {"startswith", "prefix,start,end"},
    {"endswith", "suffix,start,end"},
    {"find", "sub,start,end"},
    {"rfind", "sub,start,end"},
    {"index", "sub,start,end"},
    {"rindex", "sub,start,end"},
    {"count", "sub,start,end"},
    {"replace", "old,new,count"},
    {"join", "iterable"},
    {"partition", "sep"},
    {"rpartition", "sep"},
    {"removeprefix", "prefix"},
    {"removesuffix", "suffix"},
    {"upper", ""},
    {"lower", ""},
    {"title", ""},
    {"capitalize", ""},
    {"swapcase", ""},
    {"center", "width,fillchar"},
    {"ljust", "width,fillchar"},
    {"rjust", "width,fillchar"},
    {"zfill", "width"},
    {"expandtabs", "tabsize"},
    {"isspace", ""},
    {"isalpha", ""},
    {"isdecimal", ""},
    {"isdigit", ""},
    {"isnumeric", ""},
    {"isalnum", ""},
    {"isascii", ""},
    {"isprintable", ""},
    {"isupper", ""},
    {"islower", ""},
    {"istitle", ""},
});
constexpr std::array<std::string_view, 7> kNotBuilt{"casefold",     "encode",    "format",   "format_map",
                                                    "isidentifier", "maketrans", "translate"};

constexpr auto kStringFilters = std::to_array<Signature>({
    {"trim", "chars"},
    {"upper", ""},
    {"lower", ""},
    {"title", ""},
    {"capitalize", ""},
    {"replace", "old,new,count"},
    {"indent", "width,first,blank"},
    {"center", "width"},
    {"wordcount", ""},
    {"string", ""},
    {"safe", ""},
    {"int", "default,base"},
    {"float", "default"},
});

std::int64_t width_of(const Call& call, std::int64_t fallback) {
  const std::int64_t width = int_argument(call, 0, "width", fallback);
  if (width > kMostWidth) throw Error("a text is padded to more than a million characters");
  return width;
}

std::string needed_text(const Call& call, std::size_t place, const std::string& name) {
  const auto text = text_argument(call, place, name);
  if (!text) throw Error("argument '" + name + "' is missing");
  return *text;
}

/// The part [start, end) of a text, as in str.find and similar methods.
struct Part {
  std::string_view text;
  std::int64_t begin = 0;  ///< in code points
};
std::optional<Part> part_of(std::string_view text, const Call& call) {
  const std::int64_t start = int_argument(call, 1, "start", 0), end = int_argument(call, 2, "end", kMostInt);
  const std::int64_t count = python::length(text);
  const auto place = [&](std::int64_t at) { return at < 0 ? std::max<std::int64_t>(0, at + count) : at; };
  if (place(start) > count || place(start) > place(end)) return std::nullopt;
  return Part{python::slice(text, start, end), place(start)};
}

Value begins_or_ends(const std::string& text, const Call& call, bool front) {
  const Value given = argument(call, 0, front ? "prefix" : "suffix");
  const auto part = part_of(text, call);
  const List several = given.is_tuple() ? *given.as_list() : List{given};
  const auto matches = [&](const Value& one) {
    const std::string& piece = text_of(one);
    return part && (front ? part->text.starts_with(piece) : part->text.ends_with(piece));
  };
  return Value(std::ranges::any_of(several, matches));
}

Value found_at(const std::string& text, const Call& call, bool last, bool needed) {
  const std::string sub = needed_text(call, 0, "sub");
  const auto part = part_of(text, call);
  const std::size_t at = !part ? std::string_view::npos : last ? part->text.rfind(sub) : part->text.find(sub);
  if (at != std::string_view::npos) return Value(part->begin + python::length(part->text.substr(0, at)));
  if (needed) throw Error("the text to find does not occur");
  return Value(std::int64_t{-1});
}

Value counted(const std::string& text, const Call& call) {
  const std::string sub = needed_text(call, 0, "sub");
  const auto part = part_of(text, call);
  if (!part) return Value(std::int64_t{0});
  if (sub.empty()) return Value(python::length(part->text) + 1);
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = part->text.find(sub, at)) != std::string_view::npos; at += sub.size())
    ++count;
  return Value(count);
}

Value list_of(std::vector<std::string> texts, Budget& budget) {
  List out;
  for (std::string& text : texts) {
    budget.bytes(sizeof(Value) + text.size());
    out.push_back(Value(std::move(text)));
  }
  return Value::list(std::move(out));
}

Value split(const std::string& text, const Call& call, bool from_right, Budget& budget) {
  const auto separator = text_argument(call, 0, "sep");
  if (separator && separator->empty()) throw Error("a text cannot be split by an empty one");
  return list_of(python::split(text, separator, int_argument(call, 1, "maxsplit", -1), from_right), budget);
}

Value partitioned(const std::string& text, const Call& call, bool last) {
  const std::string sep = needed_text(call, 0, "sep");
  if (sep.empty()) throw Error("a text cannot be split by an empty one");
  const std::size_t at = last ? text.rfind(sep) : text.find(sep);
  const bool found = at != std::string::npos;
  const std::string before = found ? text.substr(0, at) : last ? "" : text;
  const std::string behind = found ? text.substr(at + sep.size()) : last ? text : "";
  return Value::tuple({Value(before), Value::text(found ? sep : ""), Value(behind)});
}

Value joined(const std::string& between, const Call& call, Budget& budget) {
  std::string out;
  bool first = true;
  for (const Value& item : items_of(argument(call, 0, "iterable"))) {
    if (!first) out += between;
    first = false;
    out += text_of(item);
    budget.bytes(text_of(item).size() + between.size());
  }
  return Value(std::move(out));
}

Value padded(const std::string& text, const Call& call, python::Side side, Budget& budget) {
  const std::string fill = text_argument(call, 1, "fillchar").value_or(" ");
  if (python::length(fill) != 1) throw Error("argument 'fillchar' is not a single character");
  std::string out = python::pad(text, width_of(call, 0), fill, side);
  budget.bytes(out.size());
  return Value(std::move(out));
}

Value stripped(const std::string& text, const std::optional<std::string>& chars, bool left, bool right) {
  return Value::text(chars ? python::strip(text, *chars, left, right) : python::strip(text, left, right));
}

Value call_method(const std::string& text, const std::string& name, const Call& call, Budget& budget) {
  const auto is = [&](std::string_view a) { return name == a; };
  using python::Side;
  if (is("strip") || is("lstrip") || is("rstrip"))
    return stripped(text, text_argument(call, 0, "chars"), !is("rstrip"), !is("lstrip"));
  if (is("split") || is("rsplit")) return split(text, call, is("rsplit"), budget);
  if (is("splitlines"))
    return list_of(python::split_lines(text, argument(call, 0, "keepends").truth()), budget);
  if (is("startswith") || is("endswith")) return begins_or_ends(text, call, is("startswith"));
  if (is("find") || is("rfind")) return found_at(text, call, is("rfind"), false);
  if (is("index") || is("rindex")) return found_at(text, call, is("rindex"), true);
  if (is("count")) return counted(text, call);
  if (is("replace")) {
    const std::string from = needed_text(call, 0, "old"), to = needed_text(call, 1, "new");
    return Value(replaced(text, from, to, int_argument(call, 2, "count", -1), budget));
  }
  if (is("join")) return joined(text, call, budget);
  if (is("partition") || is("rpartition")) return partitioned(text, call, is("rpartition"));
  if (is("removeprefix")) {
    const std::string prefix = needed_text(call, 0, "prefix");
    return Value(text.starts_with(prefix) ? text.substr(prefix.size()) : text);
  }
  if (is("removesuffix")) {
    const std::string suffix = needed_text(call, 0, "suffix");
    return Value(text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text);
  }
  if (is("upper")) return Value(python::upper(text));
  if (is("lower")) return Value(python::lower(text));
  if (is("title")) return Value(python::title(text));
  if (is("capitalize")) return Value(python::capitalize(text));
  if (is("swapcase")) return Value(python::swap_case(text));
  if (is("center")) return padded(text, call, Side::both, budget);
  if (is("ljust")) return padded(text, call, Side::right, budget);
  if (is("rjust")) return padded(text, call, Side::left, budget);
  if (is("zfill")) return Value(python::zero_fill(text, width_of(call, 0)));
  if (is("expandtabs")) {
    const std::int64_t size = std::min<std::int64_t>(int_argument(call, 0, "tabsize", 8), 1024);
    budget.bytes(static_cast<std::size_t>(std::ranges::count(text, '\t') * std::max<std::int64_t>(size, 0)));
    return Value(python::expand_tabs(text, size));
  }
  const std::optional<bool> answer = python::is(name, text);
  check(answer.has_value(), "every method of the table is built");
  return Value(*answer);
}

// jinja2 capitalises the first letter of each part between blanks, dashes and opening brackets.
std::string title_filter(const std::string& text) {
  std::string out, word;
  const auto flush = [&] {
    const std::string_view first = python::slice(word, 0, 1);
    out += python::upper(first) + python::lower(std::string_view(word).substr(first.size()));
    word.clear();
  };
  for (const Value& item : items_of(Value(text))) {
    const std::string& c = *item.as_text();
    const bool between =
        !python::strip(c).size() || std::string_view("-({[<").find(c) != std::string_view::npos;
    if (between) flush();
    (between ? out : word) += c;
  }
  flush();
  return out;
}

std::int64_t word_count(const std::string& text) {
  static const CharSet words = [] {
    // Python's \w: str.isalnum and the underscore.
    Ranges all = category_ranges(category_mask("L") | category_mask("N"));
    all.emplace_back('_', '_');
    return CharSet(std::move(all));
  }();
  std::int64_t count = 0;
  bool inside = false;
  for (const Value& item : items_of(Value(text))) {
    const std::string& c = *item.as_text();
    const bool in_word = utf8_step(c).valid && words.contains(utf8_at(c.data()));
    count += in_word && !inside;
    inside = in_word;
  }
  return count;
}

std::string indented(const std::string& text, const Call& call, Budget& budget) {
  const Value width = argument(call, 0, "width", Value(std::int64_t{4}));
  const std::int64_t count = width.as_text() ? 0 : int_argument(call, 0, "width", 4);
  if (count > kMostWidth) throw Error("a text is indented by more than a million characters");
  const std::string blanks =
      width.as_text() ? *width.as_text()
                      : std::string(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), ' ');
  const bool first = argument(call, 1, "first").truth(), blank = argument(call, 2, "blank").truth();
  std::string out = first ? blanks : "";
  bool begins = true;
  for (const std::string& line : python::split_lines(text + "\n", false)) {
    if (!begins) out += "\n" + (line.empty() && !blank ? "" : blanks);
    begins = false;
    out += line;
    budget.bytes(line.size() + blanks.size());
  }
  return out;
}

/// Returns a number in the syntax of Python's int() and float(): with blanks around it and underscores
/// between digits.
std::optional<std::string> number_text(const std::string& text) {
  std::string out;
  const std::string all = python::ascii_digits(python::strip(text));
  const std::string_view bare = all;
  for (std::size_t i = 0; i < bare.size(); ++i) {
    const auto digit = [&](std::size_t at) { return at < bare.size() && bare[at] >= '0' && bare[at] <= '9'; };
    if (bare[i] != '_') {
      out += bare[i];
    } else if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  if (!out.starts_with('+')) return out;
  if (out.size() > 1 && (out[1] == '+' || out[1] == '-')) return std::nullopt;
  return out.substr(1);
}

std::optional<double> read_float(const std::string& text) {
  const auto number = number_text(text);
  double value = 0;
  if (!number || number->empty()) return std::nullopt;
  const auto [end, code] = std::from_chars(number->data(), number->data() + number->size(), value);
  if (code != std::errc() || end != number->data() + number->size()) return std::nullopt;
  return value;
}

Value int_filter(const Value& value, const Call& call) {
  const Value fallback = argument(call, 0, "default", Value(std::int64_t{0}));
  const std::int64_t base = int_argument(call, 1, "base", 10);
  if (base != 10) throw Error("the filter 'int' with a base other than 10 is not supported");
  if (value.undefined()) throw Error("an undefined value is no number");
  if (value.get<std::int64_t>()) return value;
  std::optional<double> real;
  if (value.number()) real = value.as_double();
  if (const std::string* text = value.as_text()) {
    const auto number = number_text(*text);
    std::int64_t whole = 0;
    if (number && !number->empty()) {
      const char* const end = number->data() + number->size();
      const auto read = std::from_chars(number->data(), end, whole);
      if (read.ec == std::errc() && read.ptr == end) return Value(whole);
    }
    real = read_float(*text);
  }
  // int() raises for a number that is not finite. jinja2 then returns the default.
  if (!real || !std::isfinite(*real)) return fallback;
  if (std::abs(*real) > 9e18) throw Error("an integer is too large");
  return Value(static_cast<std::int64_t>(*real));
}

Value float_filter(const Value& value, const Call& call) {
  if (value.undefined()) throw Error("an undefined value is no number");
  if (value.number()) return Value(value.as_double());
  const auto real = value.as_text() ? read_float(*value.as_text()) : std::nullopt;
  return real ? Value(*real) : argument(call, 0, "default", Value(0.0));
}

}  // namespace

void require_parameters(const Signature& signature, const Call& call) {
  const std::vector<std::string> names = octet::split(signature.parameters, ',');
  if (!names.empty() && names.back() == "...") return;
  const std::size_t most = signature.parameters.empty() ? 0 : names.size();
  const std::string where = "'" + std::string(signature.name) + "'";
  if (call.places.size() > most)
    throw Error(where + " takes " +
                (most == 0 ? "no values" : "at most " + std::to_string(most) + " values"));
  for (const auto& [name, given] : call.names) {
    if (std::ranges::find(names, name) == names.end())
      throw Error(where + " has no argument '" + name.substr(0, 40) + "' here");
  }
}

Value argument(const Call& call, std::size_t place, const std::string& name, Value fallback) {
  if (place < call.places.size()) return call.places[place];
  for (const auto& [key, value] : call.names) {
    if (key == name) return value;
  }
  return fallback;
}

std::optional<std::string> text_argument(const Call& call, std::size_t place, const std::string& name) {
  const Value value = argument(call, place, name, Value::none());
  if (value.is_none()) return std::nullopt;
  if (!value.as_text()) throw Error("argument '" + name + "' is not a text");
  return *value.as_text();
}

std::int64_t int_argument(const Call& call, std::size_t place, const std::string& name,
                          std::int64_t fallback) {
  const Value value = argument(call, place, name, Value::none());
  if (value.is_none()) return fallback;
  if (const bool* flag = value.get<bool>()) return *flag ? 1 : 0;
  const std::int64_t* number = value.get<std::int64_t>();
  if (!number) throw Error("argument '" + name + "' is not an integer");
  return *number;
}

const std::string& text_of(const Value& value) {
  if (!value.as_text()) throw Error(std::string("a str was expected, not an ") + value.type());
  return *value.as_text();
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to,
                     std::int64_t most, Budget& budget) {
  std::string out;
  std::size_t done = 0;
  std::int64_t count = 0;
  const auto may = [&] { return most < 0 || count++ < most; };
  if (from.empty()) {
    // Like Python: an empty `from` inserts `to` between all characters.
    const List items = items_of(Value(text));
    for (std::size_t i = 0; i <= items.size(); ++i) {
      if (may()) out += to;
      if (i < items.size()) out += *items[i].as_text();
      budget.bytes(to.size());
    }
    return out;
  }
  for (std::size_t at; (at = text.find(from, done)) != std::string::npos && may(); done = at + from.size()) {
    out.append(text, done, at - done) += to;
    budget.bytes(to.size());
  }
  return out.append(text, done);
}

Value text_method(const std::string& text, const std::string& name, Budget& budget) {
  if (std::ranges::find(kNotBuilt, name) != kNotBuilt.end())
    throw Error("the method '" + name + "' of a str is not supported");
  const Signature* const signature = find_signature(kMethods, name);
  if (signature == nullptr) return {};
  return Value(std::make_shared<Function>([=, &budget](const Call& call) {
    require_parameters(*signature, call);
    budget.bytes(text.size() / 16 + 1);
    return call_method(text, name, call, budget);
  }));
}

std::optional<Value> text_filter(const std::string& name, const Value& value, const Call& call,
                                 Budget& budget) {
  const Signature* const signature = find_signature(kStringFilters, name);
  if (signature == nullptr) return std::nullopt;
  require_parameters(*signature, call);
  const auto is = [&](std::string_view a) { return name == a; };
  if (is("int")) return int_filter(value, call);
  if (is("float")) return float_filter(value, call);
  const std::string text = value.print();
  budget.bytes(text.size() / 16 + 1);
  if (is("trim")) return stripped(text, text_argument(call, 0, "chars"), true, true);
  if (is("upper")) return Value(python::upper(text));
  if (is("lower")) return Value(python::lower(text));
  if (is("title")) return Value(title_filter(text));
  if (is("capitalize")) return Value(python::capitalize(text));
  if (is("replace")) {
    const auto print = [&](std::size_t place, const char* key) {
      const Value given = argument(call, place, key);
      if (given.undefined()) throw Error(std::string("argument '") + key + "' is missing");
      return given.print();
    };
    return Value(
        replaced(text, print(0, "old"), print(1, "new"), int_argument(call, 2, "count", -1), budget));
  }
  if (is("indent")) return Value(indented(text, call, budget));
  if (is("center")) {
    std::string out = python::pad(text, width_of(call, 80), " ", python::Side::both);
    budget.bytes(out.size());
    return Value(std::move(out));
  }
  if (is("wordcount")) return Value(word_count(text));
  return Value(text);  // string, safe
}

}  // namespace octet::text::jinja
