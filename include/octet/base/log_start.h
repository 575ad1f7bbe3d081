// The screen of a run before its first step. Table and messages take a limited number of rows: the most
// important messages are printed, and one line counts the others. training.log has all messages.
#pragma once

namespace octet::log {

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
