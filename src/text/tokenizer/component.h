// Reading one component ({"type": ...}) of a tokenizer file.
#pragma once

#include <string>
#include <string_view>

#include "octet/base/json_fwd.h"
#include "tokenizer/aligned_text.h"

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

}  // namespace octet::text
