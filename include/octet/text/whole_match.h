#pragma once

#include <string_view>

namespace octet::text {

/// Whether a regular expression in the syntax of Python's `re` matches all of `text` (re.fullmatch). The time
/// is bounded. Throws Error if the expression is broken or uses an unsupported feature.
bool matches_whole(std::string_view expression, std::string_view text);

}  // namespace octet::text
