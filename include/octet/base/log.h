// Logging. One rank prints: others are silent unless asked. Everything goes to standard error and, once a
// run has a folder, to training.log in it; standard output belongs to results.
#pragma once

#include <cstddef>
#include <string>

namespace octet::log {

/// Sets the rank. `speaks` is true on the rank that prints; other ranks print only errors.
void set_rank(int rank, bool speaks);
/// Also writes every line to this file (appending), first the lines that were printed before this call. Only
/// on the rank that prints.
void open_file(const std::string& path);
/// Appends the errors of this rank, which does not print, to the file of the rank that prints.
void open_file_for_errors(const std::string& path);
/// Called before a line is printed and after, so that a progress bar can step aside.
void set_hooks(void (*before)(), void (*after)());

/// The importance of a message before the first step of a run (log_start.h).
enum class Importance {
  note,      ///< information
  setting,   ///< a doubtful setting, or a fault without consequences
  data,      ///< how data are read
  warning,   ///< any other warning
  training,  ///< a change of the trained data or weights
  waiting,   ///< the program waits; the message is printed at once
};

void info(const std::string& line, Importance importance = Importance::note);
void warn(const std::string& line, Importance importance = Importance::warning);
void error(const std::string& line);
void debug(const std::string& line);

/// Writes bytes to standard error and to the file as they are. Signal handlers may call it.
void write_from_handler(const char* text, std::size_t size);

}  // namespace octet::log
