#include "octet/base/json.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet {
namespace {

[[noreturn]] void wrong_type(const std::string& key, const std::string& expected, const Json& value,
                             const std::string& where) {
  throw Error({.what = "value of '" + key + "' cannot be used",
               .expected = expected,
               .found = short_json(value),
               .where = where,
               .fix = "correct the value there",
               .code = ExitCode::usage});
}

// Builds a value from the parser's events. The library's own builder looks at all members of an object for
// every key, and with a callback at all elements of a list for every element: quadratic in their number.
class Builder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  Builder(const std::string& where, int max_depth, bool keep_digits = false)
      : where_(where), max_depth_(max_depth), keep_digits_(keep_digits) {}
  Json take() { return std::move(root_); }

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(number_integer_t value) { return put(Json(value)); }
  bool number_unsigned(number_unsigned_t value) { return put(Json(value)); }
  bool number_float(number_float_t value, const string_t& written) {
    if (!keep_digits_ || written.find_first_of(".eE") != std::string::npos) return put(Json(value));
    return put(Json::binary(std::vector<std::uint8_t>(written.begin(), written.end())));
  }
  bool string(string_t& value) { return put(Json(std::move(value))); }
  bool binary(binary_t& value) { return put(Json(std::move(value))); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    Level& level = levels_.back();
    if (is_known(level, name)) {
      throw Error({.what = "key '" + name + "' occurs twice in one JSON object",
                   .expected = "each key once",
                   .found = "the key again, with another or the same value",
                   .where = where_,
                   .fix = "keep one of the two",
                   .code = ExitCode::usage});
    }
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) {
    throw Error({.what = "not valid JSON",
                 .found = json_problem(e.what()),
                 .where = where_,
                 .fix = "correct it there: a comma, a quote or a bracket is missing or superfluous, or the "
                        "file is cut short",
                 .code = ExitCode::usage});
  }

 private:
  // A list or object that is not closed yet.
  struct Level {
    Json* value;
    std::unordered_set<std::string> keys;  ///< of an object with many
  };
  static constexpr std::size_t kFew = 16;  ///< keys that are compared one by one

  static bool is_known(Level& level, const std::string& name) {
    const auto& members = level.value->get_ref<const Json::object_t&>();
    if (members.size() < kFew) {
      return std::any_of(members.begin(), members.end(), [&](const auto& m) { return m.first == name; });
    }
    if (level.keys.empty()) {
      for (const auto& member : members) level.keys.insert(member.first);
    }
    return !level.keys.insert(name).second;
  }
  Json* place(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    auto& members = static_cast<Json::object_t::Container&>(parent.get_ref<Json::object_t&>());
    return &members.emplace_back(std::move(key_), std::move(value)).second;
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (static_cast<int>(levels_.size()) >= max_depth_) {
      throw Error({.what = "JSON is nested too deeply",
                   .expected = "at most " + std::to_string(max_depth_) + " levels",
                   .where = where_,
                   .fix = "check that this is the right file; no file that Octet reads has so many levels",
                   .code = ExitCode::usage});
    }
    levels_.push_back({.value = place(std::move(value)), .keys = {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  const std::string& where_;
  int max_depth_;
  bool keep_digits_;
  Json root_;
  std::string key_;
  std::vector<Level> levels_;
};

const Json& null_json() {
  static const Json null;
  return null;
}

}  // namespace

JsonMember::JsonMember() = default;
JsonMember::JsonMember(Json* moved_from) : value_(std::make_unique<Json>(std::move(*moved_from))) {}
JsonMember::JsonMember(const JsonMember& other)
    : value_(other.value_ ? std::make_unique<Json>(*other.value_) : nullptr) {}
JsonMember::JsonMember(JsonMember&& other) noexcept = default;
JsonMember& JsonMember::operator=(const JsonMember& other) {
  if (this != &other) value_ = other.value_ ? std::make_unique<Json>(*other.value_) : nullptr;
  return *this;
}
JsonMember& JsonMember::operator=(JsonMember&& other) noexcept = default;
JsonMember::~JsonMember() = default;

const Json& JsonMember::operator*() const {
  return value_ ? *value_ : null_json();
}
Json& JsonMember::operator*() {
  if (!value_) value_ = std::make_unique<Json>();
  return *value_;
}

std::string json_problem(std::string_view message) {
  if (const std::size_t end = message.find("] "); message.starts_with('[') && end != message.npos)
    message.remove_prefix(end + 2);
  constexpr std::string_view kAt = "parse error at ";
  std::string place;
  if (const std::size_t end = message.find(": "); message.starts_with(kAt) && end != message.npos) {
    place = message.substr(kAt.size(), end - kAt.size());
    // A row is one line; another part of the message gives its number in the file.
    if (place.starts_with("line 1, ")) place.erase(0, std::string_view("line 1, ").size());
    place += ": ";
    message.remove_prefix(end + 2);
  }
  const std::size_t reason = message.find(" - ");
  if (message.starts_with("syntax error") && reason != message.npos) message.remove_prefix(reason + 3);
  return place + std::string(message);
}

Json parse_json(std::string_view text, const std::string& where, bool comments, int max_depth) {
  Builder builder(where, max_depth);
  Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json, true, comments);
  return builder.take();
}

Json parse_json_digits(std::string_view text, const std::string& where) {
  Builder builder(where, 256, true);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string json_digits(const Json& value) {
  if (!value.is_binary()) return "";
  const auto& digits = value.get_binary();
  return {digits.begin(), digits.end()};
}

std::string dump_json_digits(const Json& value) {
  std::string out;
  if (value.is_binary()) return value.get_binary().empty() ? "null" : json_digits(value);
  if (value.is_array()) {
    for (const Json& item : value) out += (out.empty() ? "" : ",") + dump_json_digits(item);
    return "[" + out + "]";
  }
  if (!value.is_object()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (const auto& [key, item] : value.items())
    out += (out.empty() ? "" : ",") + dump_json_digits(Json(key)) + ":" + dump_json_digits(item);
  return "{" + out + "}";
}

Json read_json(const std::string& path, bool comments) {
  return parse_json(read_file(path), path, comments);
}

std::int64_t json_int(const Json& object, const std::string& key, std::int64_t fallback, std::int64_t low,
                      std::int64_t high, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return fallback;
  const std::string expected = "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  std::int64_t value = 0;
  if (it->is_number_unsigned()) {
    const auto u = it->get<std::uint64_t>();
    if (u > static_cast<std::uint64_t>(INT64_MAX)) wrong_type(key, expected, *it, where);
    value = static_cast<std::int64_t>(u);
  } else if (it->is_number_integer()) {
    value = it->get<std::int64_t>();
  } else if (it->is_number_float()) {
    const double d = it->get<double>();
    if (!(std::abs(d) < 0x1p53) || d != std::floor(d)) wrong_type(key, expected, *it, where);
    value = static_cast<std::int64_t>(d);
  } else {
    wrong_type(key, expected, *it, where);
  }
  if (value < low || value > high) wrong_type(key, expected, *it, where);
  return value;
}

double json_number(const Json& object, const std::string& key, double fallback, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return fallback;
  if (!it->is_number() || !std::isfinite(it->get<double>())) wrong_type(key, "a finite number", *it, where);
  return it->get<double>();
}

bool json_bool(const Json& object, const std::string& key, bool fallback, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return fallback;
  if (!it->is_boolean()) wrong_type(key, "true or false", *it, where);
  return it->get<bool>();
}

std::string json_string(const Json& object, const std::string& key, const std::string& fallback,
                        const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return fallback;
  if (!it->is_string()) wrong_type(key, "a string", *it, where);
  return it->get<std::string>();
}

std::string short_text(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  text.resize(end);
  return text + "...";
}

std::string short_json(const Json& value, std::size_t most) {
  return short_text(value.dump(-1, ' ', false, Json::error_handler_t::replace), most);
}

}  // namespace octet
