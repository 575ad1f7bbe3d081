#include "values.h"

#include <algorithm>
#include <cctype>

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::data {

const Json* value_at(const Json& object, const std::string& key) {
  if (key.empty() || !object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string absence_of(const Json& object, const std::string& key) {
  return object.is_object() && object.contains(key) ? "is null" : "is missing";
}

std::string kind_of(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number() || !json_digits(value).empty()) return "a number";
  if (value.is_string()) return "a text";
  if (value.is_array()) return "a list";
  return value.is_object() ? "an object" : "a value that cannot be read as text";
}

std::string short_text(const Json& value) {
  return octet::short_text(dump_json_digits(value), 40);
}

std::string text_of(const Json& value, const std::string& name, bool parts) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  if (const std::string digits = json_digits(value); !digits.empty()) return digits;
  if (!parts || !value.is_array()) throw Unusable{"'" + name + "' is " + kind_of(value) + ", not a text"};
  std::string text;
  for (const Json& part : value) {
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    const Json* type = value_at(part, "type");
    const Json* words = value_at(part, "text");
    const bool known = !type || *type == "text" || *type == "input_text" || *type == "output_text";
    if (!known || !words || !words->is_string()) {
      throw Unusable{"'" + name + "' holds a part that is not text: " + short_text(type ? *type : part)};
    }
    text += words->get<std::string>();
  }
  return text;
}

std::optional<std::string> text_at(const Json& object, const std::string& key, bool parts) {
  const Json* value = value_at(object, key);
  return value ? std::optional(text_of(*value, key, parts)) : std::nullopt;
}

Json structure_of(const Json& value, const std::string& name) {
  if (value.is_structured()) return value;
  if (value.is_string()) {
    try {
      Json parsed = parse_json_digits(value.get<std::string>(), name);
      if (parsed.is_structured()) return parsed;
    } catch (const Error&) {
      // Reported below.
    }
    throw Unusable{"'" + name + "' is a text that is no JSON list or object"};
  }
  throw Unusable{"'" + name + "' is " + kind_of(value) + ", not a list or an object"};
}

bool flag_of(const Json& value, const std::string& name) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number() && (value == 0 || value == 1)) return value == 1;
  if (value.is_string()) {
    std::string text = value.get<std::string>();
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    if (text == "true" || text == "1" || text == "1.0") return true;
    if (text == "false" || text == "0" || text == "0.0") return false;
  }
  throw Unusable{"'" + name + "' is " + short_text(value) + "; only true, false, 1 and 0 can be used"};
}

bool is_nothing(const Json& value) {
  return value.is_null() || value == false || value == "" || (value.is_number() && value == 0) ||
         (value.is_structured() && value.empty());
}

bool is_message_list(const Json& value) {
  return value.is_array() && !value.empty() && std::ranges::all_of(value, [](const Json& message) {
           return message.is_object() && (message.contains("role") || message.contains("from"));
         });
}

}  // namespace octet::data
