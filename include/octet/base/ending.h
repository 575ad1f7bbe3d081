// The exit code of a program that has printed its last error. A fault while the program cleans up keeps it.
#pragma once

namespace octet {

/// Notes that the program has an error to print, and then ends with `code`.
void note_ending(int code) noexcept;

/// Returns the code of the last note_ending(), or -1. Callable from a signal handler.
int noted_ending() noexcept;

}  // namespace octet
