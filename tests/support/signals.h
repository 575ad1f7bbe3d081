// The signals of a test's process.
#pragma once

#include <csignal>

namespace octet::test {

/// Restores the signals that a process blocks, and SIGPIPE, as they are for a new program.
class SignalsAsBefore {
 public:
  SignalsAsBefore() { ::sigprocmask(SIG_SETMASK, nullptr, &before_); }
  ~SignalsAsBefore() {
    ::signal(SIGPIPE, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalsAsBefore(const SignalsAsBefore&) = delete;
  SignalsAsBefore& operator=(const SignalsAsBefore&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace octet::test
