// JSON with the results of Python's json module: writing a parsed value gives the text of json.dumps.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::text {

struct PythonJson {
  enum class Kind { null, boolean, number, string, list, object };
  Kind kind = Kind::null;
  std::string text;  ///< a string's characters; the JSON text of a number or boolean
  std::vector<PythonJson> items;
  struct Member;
  std::vector<Member> members;  ///< in the order of first appearance

  /// Returns null if this is not an object or lacks the key.
  const PythonJson* find(std::string_view key) const;
  bool is(Kind k) const { return kind == k; }
  static PythonJson string(std::string text);
};

struct PythonJson::Member {
  Member(std::string name, PythonJson value) : first(std::move(name)), second(std::move(value)) {}
  std::string first;
  PythonJson second;
};

inline PythonJson PythonJson::string(std::string text) {
  return {Kind::string, std::move(text), {}, {}};
}

/// Returns nothing if `text` is not JSON. Unlike Python, refuses NaN, Infinity, numbers beyond a double, lone
/// surrogates and nesting deeper than 500.
std::optional<PythonJson> parse_python_json(std::string_view text);

/// Returns json.dumps(value, ensure_ascii=False, indent=indent). An indent of 0 means one line.
std::string dump_python_json(const PythonJson& value, int indent = 0);

/// Returns Python's repr() of a float.
std::string python_float(double value);

}  // namespace octet::text
