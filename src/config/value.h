// From a node of unknown type to a checked value, and back to text.
#pragma once

#include <optional>
#include <string>

#include "node.h"
#include "octet/base/error.h"
#include "octet/config/schema.h"

namespace octet::config {

/// A value as its key's type; `given` is false for null.
struct Value {
  bool given = false;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  Strings list;
  Arguments arguments;
  /// Why the value is not supported. It stands against nothing as long as a stronger source replaces it.
  std::optional<Problem> refusal;
};

/// Where a value stands, for messages.
struct Location {
  std::string where;         ///< "config.yaml:12"
  std::string key;           ///< as the user wrote it: "train.learning_rate"
  std::string written = {};  ///< the value as the user wrote it, where it is spelt otherwise here
  bool included = false;     ///< stands in a file that the configuration includes
};

/// Checks type, range and choices; throws a usage Error. What is known and not supported has a `refusal`.
Value check_value(const Field& field, const Node& node, const Location& location);

/// Stores a checked value; for null the default.
void store(const Field& field, const Value& value, Config& config);

/// Canonical text of a checked value; equal values have equal texts.
std::string canonical(const Field& field, const Value& value);

/// What to do about a value of a key of ours that cannot be used.
std::string such_a_value(const std::string& key);

/// Strict readers of scalars. They take what YAML 1.1 and Python call a number ("2e-4", "1_000") and nothing
/// that changes its meaning between readers ("010", "1:30", ".inf").
std::optional<bool> read_bool(const std::string& text);
std::optional<double> read_number(const std::string& text);

/// Shortest decimal that reads back as the same double.
std::string number_text(double value);

/// A string as a YAML scalar, in quotes where it needs them.
std::string yaml_text(const std::string& text);

}  // namespace octet::config
