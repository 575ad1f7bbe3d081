// Libraries that end the program by themselves.
#pragma once

namespace octet {

/// While this lives, a call of exit() is not the program's own: a library had no threads or no memory, has
/// said so in its own words, and what can be done is printed behind them. One at a time.
class EndsItself {
 public:
  EndsItself();
  ~EndsItself();
  EndsItself(const EndsItself&) = delete;
  EndsItself& operator=(const EndsItself&) = delete;

  /// From now on an end is the program's own, which has said why.
  static void allow();
};

}  // namespace octet
