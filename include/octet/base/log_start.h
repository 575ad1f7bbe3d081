// The screen of a run before its first step. Table and messages take a limited number of rows: the most
// important messages are printed, and one line counts the others. training.log has all messages.
#pragma once

namespace octet::log {

/// Limits the screen from its construction to end_start(), an error, or its end, unless OCTETRUN_VERBOSE is
/// set. Information and less important warnings wait for begin_table().
class StartScreen {
 public:
  explicit StartScreen(int rows);
  /// Calls end_start().
  ~StartScreen();
  StartScreen(const StartScreen&) = delete;
  StartScreen& operator=(const StartScreen&) = delete;
};

/// Prints the most important waiting messages, so that a table of `rows` rows still fits, and counts the
/// others. Afterwards information belongs to the table and is printed. Warnings are printed while there is
/// room.
void begin_table(int rows);
/// Ends the limit before the report of the first step. Prints messages that still wait, and counts the
/// others.
void end_start();

}  // namespace octet::log
