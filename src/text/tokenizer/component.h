// Shared code of the components of tokenizer.json: their JSON, patterns, and the alphabet of bytes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "octet/base/json_fwd.h"
#include "regex/regex.h"
#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace octet::text {

/// The advice in errors for an unusable tokenizer file, or an unusable expression in it.
inline constexpr const char* kBrokenTokenizer =
    "correct it there, fetch the file again, or write it again with transformers' save_pretrained";
inline constexpr const char* kBrokenPattern =
    "correct it in tokenizer.json, or fetch the file again; replace constructs that are not supported";

/// Throws the Error for an unusable tokenizer file. The message has at most 80 bytes of `found`.
[[noreturn]] void broken_tokenizer(const std::string& what, const std::string& where);
[[noreturn]] void broken_tokenizer(const std::string& what, const std::string& found,
                                   const std::string& where);
/// Returns the component's "type". Throws Error if `json` is not an object with a type.
std::string component_type(const Json& json, const std::string& where);
/// Return a required field, a required string and a required list. Throw Error if it is missing or has
/// another type.
const Json& component_field(const Json& json, const char* key, const std::string& where);
std::string component_string(const Json& json, const char* key, const std::string& where);
const Json& component_list(const Json& json, const char* key, const std::string& where);
/// Throws the Error for an unknown component.
[[noreturn]] void unknown_component(const std::string& type, const std::string& known,
                                    const std::string& where);

/// Returns `prefix` followed by `view`. The source of the prefix is the first character. Empty text stays
/// empty.
AlignedText with_prefix(const TextView& view, std::string_view prefix);

// A {"String": ...} or {"Regex": ...} of a tokenizer file: the pattern of Split and Replace.

class Pattern {
 public:
  /// `where` names the file and component for messages. Throws Error.
  Pattern(const Json& json, const std::string& where);
  static Pattern regex(std::string_view expression);
  /// Each character of `set` is a match.
  static Pattern characters(Ranges set);

  /// Calls `found(begin, end)` for each match in `text`, left to right.
  template <class Found>
  void each_match(std::string_view text, Found&& found) const {
    std::size_t begin = 0, end = 0;
    if (regex_) {
      RegexFinder finder(*regex_, text);
      while (finder.next(begin, end)) found(begin, end);
    } else if (characters_) {
      each_character(text, [&](std::uint32_t code, std::size_t first, std::size_t last) {
        if (characters_->contains(code)) found(first, last);
      });
    } else if (!literal_.empty()) {
      while ((begin = text.find(literal_, end)) != std::string_view::npos) {
        end = begin + literal_.size();
        found(begin, end);
      }
    }
  }

 private:
  Pattern() = default;
  std::shared_ptr<const Regex> regex_;
  std::shared_ptr<const CharSet> characters_;
  std::string literal_;
};

// The 256 characters for bytes in GPT-2's byte-level vocabularies.

/// Returns the character of each byte. Printable Latin-1 maps to itself; other bytes map to U+0100 and above.
const std::array<std::uint32_t, 256>& byte_alphabet();
/// Returns `piece` as bytes, or nothing if one of its characters is not in the alphabet.
std::optional<std::string> bytes_of_piece(std::string_view piece);
/// Returns `bytes` written in the alphabet.
std::string piece_of_bytes(std::string_view bytes);

}  // namespace octet::text
