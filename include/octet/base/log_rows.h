// How much of the screen lines of the log have taken.
#pragma once

#include <string>

namespace octet::log {

/// Returns the rows that a text of one or more lines takes on a screen of 80 columns.
int rows_of(const std::string& text);
/// Returns the rows that information, warnings and errors have taken so far.
int rows_printed();

}  // namespace octet::log
