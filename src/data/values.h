// Values of rows as texts and lists. A missing value and null are no value. A value of another type makes a
// row unusable: it never becomes an empty text.
#pragma once

#include <optional>
#include <string>

#include "octet/base/json.h"

namespace octet::data {

/// Thrown for a row that cannot be used.
struct Unusable {
  std::string why;
};

/// Returns the value of a key, or null if it is missing or null.
const Json* value_at(const Json& object, const std::string& key);

/// Returns "is missing" or "is null" for a key that value_at() does not find.
std::string absence_of(const Json& object, const std::string& key);

/// Names the type of a value: "a list".
std::string kind_of(const Json& value);

/// Returns the value in one line, cut to 40 bytes.
std::string short_text(const Json& value);

/// Returns a text, or the JSON text of a number. With `parts`, joins a list of texts and of OpenAI's text
/// parts. Throws Unusable for a value of another type; `name` is the field.
std::string text_of(const Json& value, const std::string& name, bool parts = false);

/// Like text_of(), for the value of a key; nullopt if there is none.
std::optional<std::string> text_at(const Json& object, const std::string& key, bool parts = false);

/// Returns a list or an object, or the value that a JSON text holds. Throws Unusable if that is neither;
/// `name` is the field.
Json structure_of(const Json& value, const std::string& name);

/// Returns the flag of a boolean, of 1 or 0, or of a text with one of these. Throws Unusable for other
/// values.
bool flag_of(const Json& value, const std::string& name);

/// Whether a value is null, false, 0, or an empty text, list or object.
bool is_nothing(const Json& value);

/// Whether a value is a list of objects with a role.
bool is_message_list(const Json& value);

}  // namespace octet::data
