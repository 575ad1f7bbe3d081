// Standard output on a terminal: text of a model or a file moves no cursor and sets no colour there.
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

/// Whether standard output is a terminal. mpirun gives each rank a new terminal, whatever its own output is.
/// For a rank, `parent` is the process number of mpirun, and the output of mpirun decides. 0: no launcher.
bool output_is_terminal(int parent = 0);

/// A stream that writes to the file descriptor `fd` what PrintablePieces gives. Null if the system refuses.
std::FILE* printable_stream(int fd);

/// After this call, standard output (std::printf and its like) passes through printable_stream(). Call it
/// once, before the first output, if the output reaches a terminal. Files and pipes keep every byte.
void protect_terminal();

}  // namespace octet
