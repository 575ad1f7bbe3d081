#include "tokenizer/component.h"

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "unicode/utf8.h"

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

Pattern Pattern::characters(Ranges set) {
  Pattern out;
  out.characters_ = std::make_shared<const CharSet>(std::move(set));
  return out;
}

const std::array<std::uint32_t, 256>& byte_alphabet() {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> out{};
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      out[b] = itself ? b : next++;
    }
    return out;
  }();
  return table;
}

std::optional<std::string> bytes_of_piece(std::string_view piece) {
  static const std::array<int, 512> back = [] {
    std::array<int, 512> out;
    out.fill(-1);
    for (int b = 0; b < 256; ++b) out[byte_alphabet()[static_cast<std::size_t>(b)]] = b;
    return out;
  }();
  std::string out;
  for (std::size_t i = 0; i < piece.size();) {
    const std::uint32_t code = utf8_at(piece.data() + i);
    if (code >= back.size() || back[code] < 0) return std::nullopt;
    out += static_cast<char>(back[code]);
    i += utf8_length(static_cast<unsigned char>(piece[i]));
  }
  return out;
}

std::string piece_of_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) utf8_append(out, byte_alphabet()[static_cast<unsigned char>(c)]);
  return out;
}

}  // namespace octet::text
