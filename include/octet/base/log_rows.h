// How much of the screen a text takes.
#pragma once

#include <string>

namespace octet::log {

/// Returns the rows that a text of one or more lines takes on a screen of 80 columns.
int rows_of(const std::string& text);

}  // namespace octet::log
