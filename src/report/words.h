// Numbers as people and Python read them.
#pragma once

#include <string>

#include "octet/report/number.h"

namespace octet::report {

/// "12,345" for large numbers, "12.3" for small ones.
std::string rate_text(double value);

/// A double with `digits` after the point.
std::string fixed(double value, int digits);

/// A string as a quoted YAML (and JSON) scalar.
std::string quoted(const std::string& text);

/// A string inside a cell of a Markdown table.
std::string cell(const std::string& text);

/// "Nov21_11-42-43_host" (local time) as Hugging Face names the folders of TensorBoard.
std::string date_and_host();

}  // namespace octet::report
