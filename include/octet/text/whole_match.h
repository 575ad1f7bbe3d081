#pragma once

#include <string_view>

namespace octet::text {

/// Whether a regular expression, in the spelling of Python's `re`, matches all of `text` (re.fullmatch). The
/// time is bounded. Throws Error when the expression is broken or uses what is not supported.
bool matches_whole(std::string_view expression, std::string_view text);

}  // namespace octet::text
