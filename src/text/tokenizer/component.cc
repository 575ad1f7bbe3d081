#include "tokenizer/component.h"

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::text {
void broken_tokenizer(const std::string& what, const std::string& where) {
  throw Error({.what = what, .where = where, .fix = kBrokenTokenizer, .code = ExitCode::usage});
}

void broken_tokenizer(const std::string& what, const std::string& found, const std::string& where) {
  throw Error({.what = what,
               .found = found.substr(0, 80),
               .where = where,
               .fix = kBrokenTokenizer,
               .code = ExitCode::usage});
}

std::string component_type(const Json& json, const std::string& where) {
  if (!json.is_object()) broken_tokenizer("a tokenizer component is not an object", where);
  return component_string(json, "type", where);
}

const Json& component_field(const Json& json, const char* key, const std::string& where) {
  const auto it = json.find(key);
  if (it == json.end()) broken_tokenizer("a tokenizer component lacks '" + std::string(key) + "'", where);
  return *it;
}

std::string component_string(const Json& json, const char* key, const std::string& where) {
  const Json& value = component_field(json, key, where);
  if (!value.is_string())
    broken_tokenizer("'" + std::string(key) + "' of a tokenizer component is not a string", where);
  return value.get<std::string>();
}

const Json& component_list(const Json& json, const char* key, const std::string& where) {
  const Json& value = component_field(json, key, where);
  if (!value.is_array())
    broken_tokenizer("'" + std::string(key) + "' of a tokenizer component is not a list", where);
  return value;
}

void unknown_component(const std::string& type, const std::string& known, const std::string& where) {
  throw Error({.what = "the tokenizer component '" + type.substr(0, 60) + "' is not supported",
               .expected = "one of " + known,
               .where = where,
               .fix = "use a model with a tokenizer of these components",
               .code = ExitCode::usage});
}

}  // namespace octet::text
