// Logging. One rank prints; other ranks print only errors. Lines go to standard error and, once a run has a
// folder, also to training.log in this folder. Standard output is reserved for results.
#pragma once

#include <cstddef>
#include <string>

namespace octet::log {

/// Sets the rank. `speaks` is true on the rank that prints; other ranks print only errors.
void set_rank(int rank, bool speaks);
/// Appends all lines to this file, also the lines that were logged before this call. Call it only on the rank
/// that prints.
void open_file(const std::string& path);
/// Appends the errors of this rank, which does not print, to the file of the rank that prints.
void open_file_for_errors(const std::string& path);
/// Sets functions that are called before and after a line is printed. A progress bar uses them to clear and
/// redraw itself.
void set_hooks(void (*before)(), void (*after)());

/// The importance of a message before the first step of a run.
enum class Importance {
  note,      ///< information
  setting,   ///< an unusual setting, or an error without consequences
  data,      ///< how data are read
  warning,   ///< any other warning
  training,  ///< a change of the trained data or weights
  waiting,   ///< the program waits; the message is printed at once
};

void info(const std::string& line, Importance importance = Importance::note);
void warn(const std::string& line, Importance importance = Importance::warning);
void error(const std::string& line);
void debug(const std::string& line);

/// Writes bytes unchanged to standard error and to the file. Signal handlers may call it.
void write_from_handler(const char* text, std::size_t size);

// The size of a text on the screen.

/// Returns the rows that a text of one or more lines takes on a screen of 80 columns.
int rows_of(const std::string& text);

// The screen of a run before its first step. Table and messages take a limited number of rows: the most
// important messages are printed, and one line counts the others. training.log has all messages.

/// Limits the rows on the screen. end_start(), the first error and the destructor end the limit.
/// OCTETRUN_VERBOSE removes it. Information and less important warnings wait for begin_table().
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
/// Ends the limit. Call it before the first step is reported. Prints waiting messages while rows are left,
/// and the number of the others. Prints all messages if no file was opened.
void end_start();

}  // namespace octet::log
