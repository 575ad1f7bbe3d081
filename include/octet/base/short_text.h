// Long texts in messages.
#pragma once

#include <cstddef>
#include <string>

#include "octet/base/json_fwd.h"

namespace octet {

/// Returns `text`, cut to at most `most` bytes (4 or more) of whole UTF-8 characters. A cut text ends with
/// "...".
std::string short_text(std::string text, std::size_t most = 80);

/// Returns `value` as JSON in one line, cut like short_text(). Bytes that are not UTF-8 are replaced.
std::string short_json(const Json& value, std::size_t most = 80);

}  // namespace octet
