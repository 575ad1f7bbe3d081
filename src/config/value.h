// Converts a node of unknown type to a checked value, and back to text.
#pragma once

#include <optional>
#include <string>

#include "node.h"
#include "octet/base/error.h"
#include "octet/config/key_table.h"

namespace octet::config {

/// A value with the type of its key; `given` is false for null.
struct Value {
  bool given = false;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  Strings list;
  Arguments arguments;
  /// Why the value is not supported. It has no effect if a stronger source replaces the value.
  std::optional<Problem> refusal;
};

/// The place of a value, for messages.
struct Location {
  std::string where;         ///< "config.yaml:12"
  std::string key;           ///< as the user wrote it: "train.learning_rate"
  std::string written = {};  ///< the value as the user wrote it, if it is spelt differently here
  bool included = false;     ///< the value is in an included file
};

/// Checks type, range and choices. Throws Error (usage). Known but unsupported values have a `refusal`.
Value check_value(const Field& field, const Node& node, const Location& location);

/// Stores a checked value; null stores the default.
void store(const Field& field, const Value& value, Config& config);

/// Returns the canonical text of a checked value; equal values have equal texts.
std::string canonical(const Field& field, const Value& value);

/// Returns the advice for an invalid value of one of our keys.
std::string such_a_value(const std::string& key);

/// Returns what to do about a refused key: the reason after "remove it: ", unless the reason says what to do.
std::string removal(const std::string& reason);

/// Strict readers of scalars. They take what YAML 1.1 and Python call a number ("2e-4", "1_000") and nothing
/// that changes its meaning between readers ("010", "1:30", ".inf").
std::optional<bool> read_bool(const std::string& text);
std::optional<double> read_number(const std::string& text);

/// Returns the shortest decimal that parses to the same double.
std::string number_text(double value);

/// Returns a string as a YAML scalar, quoted if needed.
std::string yaml_text(const std::string& text);

}  // namespace octet::config
