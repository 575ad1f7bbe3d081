// JSON that keeps all digits of whole numbers. A number beyond 64 bits (such as a tracking number) becomes a
// binary value with its digits, because a double would round it.
#pragma once

#include <string>
#include <string_view>

#include "octet/base/json_fwd.h"

namespace octet {

/// Parses `text` like parse_json(), but keeps the digits of whole numbers beyond 64 bits.
Json parse_json_digits(std::string_view text, const std::string& where);

/// Writes a value in one line. Digits that parse_json_digits() kept are written as a number.
std::string dump_json_digits(const Json& value);

/// Returns the digits of a whole number beyond 64 bits, or "" for any other value.
std::string json_digits(const Json& value);

}  // namespace octet
