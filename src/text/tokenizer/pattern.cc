#include "tokenizer/pattern.h"
#include "tokenizer/component.h"

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::text {

Pattern::Pattern(const Json& json, const std::string& where) {
  if (json.is_object() && json.size() == 1 && json.front().is_string()) {
    const std::string& value = json.front().get_ref<const std::string&>();
    if (json.begin().key() == "String") {
      literal_ = value;
      return;
    }
    if (json.begin().key() == "Regex") {
      regex_ = std::make_shared<const Regex>(value);
      return;
    }
  }
  throw Error({.what = "a pattern cannot be used",
               .expected = R"({"String": "..."} or {"Regex": "..."})",
               .found = json.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80),
               .where = where,
               .fix = kBrokenTokenizer,
               .code = ExitCode::usage});
}

Pattern Pattern::regex(std::string_view expression) {
  Pattern out;
  out.regex_ = std::make_shared<const Regex>(expression);
  return out;
}

}  // namespace octet::text
