// JSON from outside: parsed with a depth limit, duplicate keys refused, numbers range-checked when read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
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

}  // namespace octet
