// This process: its exit code, libraries that end it, the priority of its threads, and its host.
#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace octet {

// The exit code of a program that has printed its last error. A fault while the program cleans up keeps it.

/// Notes that the program has an error to print, and then ends with `code`.
void note_ending(int code) noexcept;

/// Returns the code of the last note_ending(), or -1. Callable from a signal handler.
int noted_ending() noexcept;

// Libraries that end the program by themselves.

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

// Priority of threads that share a core.

/// The niceness (setpriority(2)) of threads with work that may take longer. Such a thread gets a tenth of a
/// core that it shares with a thread of niceness 0, and all of an idle core.
inline constexpr int kBehindNiceness = 10;

/// From now on this thread gets a core when the threads that compute leave one, and so do threads that it
/// starts. It stays so: a thread must not raise itself again. Nothing happens where the system refuses.
void run_thread_behind();

/// The name of this host, as `uname -n` prints it; "localhost" if the system does not tell.
inline std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace octet
