// JSON from outside: parsed with a depth limit, duplicate keys refused, numbers range-checked when read.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "octet/base/json_fwd.h"

namespace octet {

/// Parses `text`. `where` names the file (and line) for messages. Throws Error on broken JSON, on nesting
/// deeper than `max_depth`, on duplicate keys. With `comments`, // and /* */ are skipped.
Json parse_json(std::string_view text, const std::string& where, bool comments = false, int max_depth = 256);

/// Reads and parses a whole file. Throws Error when it is missing or broken.
Json read_json(const std::string& path, bool comments = false);

/// Value of `key` as an integer in [low, high]; `fallback` when the key is absent or null.
/// Throws Error for a value of another type (2.0 counts as 2) or out of range.
std::int64_t json_int(const Json& object, const std::string& key, std::int64_t fallback, std::int64_t low,
                      std::int64_t high, const std::string& where);
/// Value of `key` as a finite number; `fallback` when absent or null.
double json_number(const Json& object, const std::string& key, double fallback, const std::string& where);
/// Value of `key` as a bool; `fallback` when absent or null.
bool json_bool(const Json& object, const std::string& key, bool fallback, const std::string& where);
/// Value of `key` as a string; `fallback` when absent or null.
std::string json_string(const Json& object, const std::string& key, const std::string& fallback,
                        const std::string& where);

// JSON that keeps all digits of whole numbers. A number beyond 64 bits (such as a tracking number) becomes a
// binary value with its digits, because a double would round it.

/// Parses `text` like parse_json(), but keeps the digits of whole numbers beyond 64 bits.
Json parse_json_digits(std::string_view text, const std::string& where);

/// Writes a value in one line. Digits that parse_json_digits() kept are written as a number.
std::string dump_json_digits(const Json& value);

/// Returns the digits of a whole number beyond 64 bits, or "" for any other value.
std::string json_digits(const Json& value);

// Messages of a JSON parser in plain words.

/// Returns the place and the reason of the parser's message: "column 8: invalid literal; last read: '"a":n'".
std::string json_problem(std::string_view message);

// Long texts in messages.

/// Returns `text`, cut to at most `most` bytes (4 or more) of whole UTF-8 characters. A cut text ends with
/// "...".
std::string short_text(std::string text, std::size_t most = 80);

/// Returns `value` as JSON in one line, cut like short_text(). Bytes that are not UTF-8 are replaced.
std::string short_json(const Json& value, std::size_t most = 80);

}  // namespace octet
