// Reading one component ({"type": ...}) of a tokenizer file.
#pragma once

#include <string>
#include <string_view>

#include "aligned_text.h"
#include "octet/base/json_fwd.h"

namespace octet::text {

/// What to do about a tokenizer's file, or an expression in it, that cannot be used.
inline constexpr const char* kBrokenTokenizer =
    "mend it there, fetch the file again, or write it anew with transformers' save_pretrained";
inline constexpr const char* kBrokenPattern =
    "mend it in tokenizer.json, or fetch the file again; what is not known here must be written in another "
    "way";

/// Throws the Error for a tokenizer's file that cannot be used. At most 80 bytes of `found` are shown.
[[noreturn]] void broken_tokenizer(const std::string& what, const std::string& where);
[[noreturn]] void broken_tokenizer(const std::string& what, const std::string& found,
                                   const std::string& where);
/// The component's "type". Throws Error when `json` is not an object with one.
std::string component_type(const Json& json, const std::string& where);
/// A field that must be there; a string; a list. Throw Error.
const Json& component_field(const Json& json, const char* key, const std::string& where);
std::string component_string(const Json& json, const char* key, const std::string& where);
const Json& component_list(const Json& json, const char* key, const std::string& where);
/// Throws the Error for a component that is not known.
[[noreturn]] void unknown_component(const std::string& type, const std::string& known,
                                    const std::string& where);

/// `prefix` followed by `view`; the prefix stands for the first character. Empty text stays empty.
AlignedText with_prefix(const TextView& view, std::string_view prefix);

}  // namespace octet::text
