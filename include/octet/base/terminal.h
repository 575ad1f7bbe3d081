// Standard output on a terminal: what a model or a file holds moves no cursor and paints no colour there.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace octet {

/// printable() of a text that comes in pieces. A character of two bytes may be cut between two pieces.
class PrintablePieces {
 public:
  /// What may be written after this piece.
  std::string take(std::string_view piece);

 private:
  bool held_ = false;  ///< the first byte of a character that may be a control character
};

/// Whether standard output is a terminal. mpirun gives its ranks terminals of their own, whatever its own
/// output is. For a rank `parent` is the process number of mpirun, whose output decides; 0: no launcher.
bool output_is_terminal(int parent = 0);

/// A stream that writes to the file descriptor `fd` what PrintablePieces gives. Null if the system refuses.
std::FILE* printable_stream(int fd);

/// From here on standard output (std::printf and its like) goes through printable_stream(). Called once,
/// before anything is written, by a program whose output reaches a terminal. Files and pipes keep every byte.
void protect_terminal();

}  // namespace octet
