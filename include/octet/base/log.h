// Logging. One rank prints: others are silent unless asked. Everything goes to standard error and, once a
// run has a folder, to training.log in it; standard output belongs to results.
#pragma once

#include <string>

namespace octet::log {

/// Says who speaks. `speaks` is true on the one rank that prints; others stay silent below `error`.
void set_rank(int rank, bool speaks);
/// Also writes every line to this file (appending). Only on the rank that prints.
void open_file(const std::string& path);
/// Called before a line is printed and after, so that a progress bar can step aside.
void set_hooks(void (*before)(), void (*after)());

void info(const std::string& line);
void warn(const std::string& line);
void error(const std::string& line);
void debug(const std::string& line);

}  // namespace octet::log
