// Libraries that end the program by themselves.
#pragma once

namespace octet {

/// During its lifetime, a call of exit() comes from a library that got no threads or no memory and printed
/// its message. Advice is then printed after that message. One at a time.
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
