// Formats a supervisor's output.
#pragma once

#include <string>
#include <string_view>

namespace octet::supervise {

/// Returns "3.2 s".
std::string seconds_text(double seconds);
/// Returns the current time: "2026-11-23T13:05:00Z".
std::string time_text();
/// Writes bytes to standard error. A missing reader is not an error.
void show(std::string_view bytes);

}  // namespace octet::supervise
