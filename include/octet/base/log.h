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

/// The importance of a message before the first step of a run.
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

// How much of the screen a text takes.

/// Returns the rows that a text of one or more lines takes on a screen of 80 columns.
int rows_of(const std::string& text);

// The screen of a run before its first step. Table and messages take a limited number of rows: the most
// important messages are printed, and one line counts the others. training.log has all messages.

/// Limits the rows on the screen until end_start(), the first error or the destructor. OCTETRUN_VERBOSE
/// removes the limit. Information and less important warnings wait for begin_table().
class StartScreen {
 public:
  explicit StartScreen(int rows);
  /// Calls end_start().
  ~StartScreen();
  StartScreen(const StartScreen&) = delete;
  StartScreen& operator=(const StartScreen&) = delete;
};

/// Prints the most important waiting messages, so that a table of `rows` rows fits. Later information is
/// printed as rows of the table, and later warnings are printed if rows are left.
void begin_table(int rows);
/// Ends the limit, before the report of the first step. Prints waiting messages while rows are left, or all
/// if no file was opened, and the number of the others.
void end_start();

}  // namespace octet::log
