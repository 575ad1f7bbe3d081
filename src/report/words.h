// Formats numbers for people and like Python.
#pragma once

#include <cstdint>
#include <string>

#include "octet/report/number.h"

namespace octet::report {

/// Returns "12,345" for large numbers, "12.3" for small ones.
std::string rate_text(double value);

/// Returns a number with `digits` digits after the point.
std::string fixed(double value, int digits);

/// Returns bytes in GiB.
double gib(std::int64_t bytes);

/// Returns a string as a quoted YAML (and JSON) scalar.
std::string quoted(const std::string& text);

/// Returns a string escaped for a cell of a Markdown table.
std::string cell(const std::string& text);

/// Returns "Nov21_11-42-43_host" (local time), Hugging Face's name of TensorBoard folders.
std::string date_and_host();

}  // namespace octet::report
