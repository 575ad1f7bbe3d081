// The table of keys.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "octet/config/config.h"

namespace octet::config {

enum class Kind : std::uint8_t { boolean, integer, number, text, list, arguments };
/// used: read by the program. noted: accepted and checked, without effect, logged once. refused: only
/// harmless values are accepted; others are an error with the reason.
enum class Status : std::uint8_t { used, noted, refused };

using Member = std::variant<std::monostate, bool Config::*, std::int64_t Config::*, double Config::*,
                            std::string Config::*, Strings Config::*, Arguments Config::*,
                            std::optional<bool> Config::*, std::optional<std::int64_t> Config::*,
                            std::optional<double> Config::*, std::optional<std::string> Config::*>;

/// A key. Built by the functions of Table and the chainable setters.
struct Field {
  std::string name;
  std::string group;
  Kind kind = Kind::text;
  Member member;
  bool optional = false;  ///< null and "none" mean "not given"
  Status status = Status::used;
  std::string doc;
  std::string more;      ///< details, shown below the table of a page
  std::string fallback;  ///< default as text; for noted and refused keys the value without effect
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;
  bool automatic = false;  ///< an integer that may be "auto", stored as kAutomatic
  Strings choices;
  Strings aliases;
  std::vector<std::pair<std::string, std::string>> refused_values;  ///< value, reason
  Strings harmless;                                                 ///< accepted values of a refused key
  std::string reason;   ///< why the key is refused, or the text of its note
  bool resume = false;  ///< part of resume_hash

  Field& range(double at_least, double at_most) & { return low = at_least, high = at_most, *this; }
  Field& at_least(double bound) & { return low = bound, *this; }
  Field& above(double bound) & { return low = bound, low_open = true, *this; }
  Field& below(double bound) & { return high = bound, high_open = true, *this; }
  Field& details(std::string text) & { return more = std::move(text), *this; }
  Field& or_auto() & { return automatic = true, *this; }
  Field& one_of(Strings values) & { return choices = std::move(values), *this; }
  Field& alias(std::string other) & { return aliases.push_back(std::move(other)), *this; }
  /// Adds a known value that is not supported.
  Field& refuse(std::string value, std::string why) & {
    return refused_values.emplace_back(std::move(value), std::move(why)), *this;
  }
  Field& decides_numbers() & { return resume = true, *this; }
};

/// Returns all keys by group, in the order of the documentation.
const std::vector<Field>& schema();
/// Returns the key with this name or alias, or nullptr.
const Field* find_field(const std::string& name);
/// Returns every name and alias.
const Strings& field_names();

/// A key of another program's configuration, by its dotted path.
struct ForeignKey {
  std::string path;
  std::string becomes;  ///< our key (several: separated by blanks); empty: no effect, or refused
  std::string reason;   ///< why it has no effect or is refused
  std::string trainer;  ///< trainer that has the key: "verl"
};
/// Returns the keys of DeepSpeed's JSON outside its sections `optimizer` and `scheduler`.
std::vector<ForeignKey> deepspeed_keys();
/// Returns the keys of all dialects, or of one trainer ("SFT-Play", "verl", "axolotl"). A configuration has
/// keys of one trainer, and our own.
std::vector<ForeignKey> dialect_keys(std::string_view trainer = {});

/// Returns the value of a used field as YAML text ("null" for an optional that is not given).
std::string value_text(const Field& field, const Config& config);
/// Returns the default as text.
std::string default_text(const Field& field);
/// Returns the accepted values: "integer in [1, 64]", "fp32, bf16", "number above 0".
std::string expected_text(const Field& field);
/// Returns the meaning of the key in whole sentences, with details and refused values.
std::string meaning_text(const Field& field);

/// Returns docs/config.md.
std::string reference_markdown();
/// Returns docs/llamafactory_keys.md: the keys that change nothing or are refused.
std::string other_keys_markdown();
/// Returns the JSON Schema of a configuration, docs/config.schema.json.
std::string json_schema();

}  // namespace octet::config
