#include "octet/base/json.h"

#include <cmath>
#include <set>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet {
namespace {

[[noreturn]] void wrong_type(const std::string& key, const std::string& expected, const Json& value,
                             const std::string& where) {
  std::string found = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (found.size() > 80) found = found.substr(0, 77) + "...";
  throw Error({.what = "value of '" + key + "' cannot be used",
               .expected = expected,
               .found = found,
               .where = where,
               .code = ExitCode::usage});
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, bool comments, int max_depth) {
  std::vector<std::set<std::string>> keys;
  const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > max_depth) {
      throw Error({.what = "JSON is nested too deeply",
                   .expected = "at most " + std::to_string(max_depth) + " levels",
                   .where = where,
                   .code = ExitCode::usage});
    }
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty()) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw Error({.what = "key '" + key + "' stands twice in one JSON object",
                     .where = where,
                     .fix = "keep one of the two",
                     .code = ExitCode::usage});
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch, true, comments);
  } catch (const nlohmann::json::exception& e) {
    throw Error({.what = "not valid JSON", .found = e.what(), .where = where, .code = ExitCode::usage});
  }
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

}  // namespace octet
