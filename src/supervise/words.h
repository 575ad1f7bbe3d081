// What a supervisor writes to the screen and to files.
#pragma once

#include <string>
#include <string_view>

namespace octet::supervise {

/// "3.2 s".
std::string seconds_text(double seconds);
/// The time now: "2026-11-23T13:05:00Z".
std::string time_text();
/// Writes bytes to standard error. Whoever reads it may leave.
void show(std::string_view bytes);

}  // namespace octet::supervise
