// Scripts of Unicode 16, names of properties in regular expressions, and sets of characters of older
// versions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "unicode/unicode.h"

namespace octet::text {

/// The name of a script and its code of four letters, in lower case without underscores.
struct ScriptName {
  std::string_view name, code;
};

struct ScriptRange {
  std::uint32_t first, last;
};

std::span<const ScriptName> script_names();
/// Runs of one script: first code point << 8 | number. The number is the place in script_names() plus 1, or 0
/// for code points without a script.
std::span<const std::uint32_t> script_runs();
/// Code points with a script that the component UnicodeScripts does not know.
std::span<const ScriptRange> later_scripts();

/// Returns the code points of the property of \p{name}: a general category ("Lu", "Uppercase_Letter", "L",
/// "Letter") or a script ("Han", "Hani"). Case, blanks, hyphens and underscores do not matter. Returns
/// nullopt for an unknown name.
std::optional<Ranges> property_ranges(std::string_view name);

/// Returns the number of the script for the component UnicodeScripts. Hiragana, Katakana and Han have one
/// number. Returns 0 for U+0020 and for characters without a script.
std::uint8_t split_script(std::uint32_t code);

}  // namespace octet::text
